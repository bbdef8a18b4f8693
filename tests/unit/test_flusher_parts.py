"""The flusher's pure parts: how a batch is shared out, a stream cut, a column spelled, a tip remembered."""

from __future__ import annotations

import gc
import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from psycopg.adapt import PyFormat, Transformer

from statecache.rules.reconcile import Tip
from statecache.settings import Settings
from statecache_workers import runner
from statecache_workers.owned_shards import (
    BRIEF_S,
    MISFITS_MAX,
    Head,
    Holding,
    OwnedRow,
    agree,
    head_of,
    shares,
    turn_after,
)
from statecache_workers.ownership import _holder
from statecache_workers.postgres_arrays import blobs, integers, texts, times, truths
from statecache_workers.redis_memory import shortage
from statecache_workers.slices import Slice, sliced
from statecache_workers.stream_places import StreamPlace
from statecache_workers.tip_cache import TipCache

ROW = OwnedRow(epoch=3, replid="r", flushed=10, entries=10, bytes=1000, excepted=0)
HEAD = Head(epoch=3, replid="r", n=13, entries=13, bytes=1600, flushed=10, excepted=0)

pending_shards = some.dictionaries(
    some.integers(0, 63), some.tuples(some.integers(1, 5000), some.integers(200, 10**9)), min_size=1
)


@given(pending_shards, some.integers(1, 1000), some.integers(1, 10**8), some.integers(0, 63))
def test_a_batch_never_holds_more_than_it_may_and_always_something(
    pending: dict[int, tuple[int, int]], entries_max: int, bytes_max: int, first: int
) -> None:
    counts = shares(pending, entries_max, bytes_max, first)
    assert 1 <= sum(counts.values()) <= entries_max
    assert all(1 <= count <= pending[shard][0] for shard, count in counts.items())
    expected = sum(count * pending[shard][1] // pending[shard][0] for shard, count in counts.items())
    assert expected <= bytes_max or sum(counts.values()) == 1


@given(pending_shards, some.integers(1, 50), some.integers(1, 10**8))
def test_every_shard_has_its_turn(pending: dict[int, tuple[int, int]], entries_max: int, bytes_max: int) -> None:
    served: set[int] = set()
    first = 0
    for _ in range(len(pending) + 1):
        counts = shares(pending, entries_max, bytes_max, first)
        served |= counts.keys()
        first = turn_after(pending, counts, first)
    assert served == pending.keys()


@given(some.integers(0, 63))
def test_a_shard_with_more_bytes_than_a_batch_holds_leaves_room_for_the_others(first: int) -> None:
    counts = shares({0: (1000, 10**9), 1: (3, 300), 2: (1, 200)}, 1000, 10**8, first)
    assert (counts[1], counts[2]) == (3, 1)
    assert 90 <= counts[0] < 100


def test_a_light_shard_does_not_wait_behind_a_heavy_one() -> None:
    assert shares({0: (100_000, 10**8), 1: (3, 300)}, 1000, 10**9, 0) == {0: 997, 1: 3}


def _entry(n: int, *, epoch: int = 3, total: int | None = None) -> tuple[bytes, list[bytes]]:
    fields = {
        "format": b"1", "change_id": b"c", "at": b"2026-11-20T11:21:15.123456Z", "writer": b"w", "entries": b"%d" % n,
        "bytes": b"%d" % (total if total is not None else 1000 + 200 * (n - 10)), "key1": b"g/1", "op1": b"set",
        "version1": b"1", "parent1": b"", "encoding1": b"json", "schema1": b"", "value1": b"x" * 10,
    }  # fmt: skip
    return b"%d-%d" % (epoch, n), [part for name, value in fields.items() for part in (name.encode(), value)]


def test_doubts_of_an_earlier_epoch_do_not_count() -> None:
    holding = Holding(0, ROW)
    for epoch in range(4, 4 + 2 * MISFITS_MAX):
        holding.doubt()
        holding.reread(ROW._replace(epoch=epoch))
    stood = []
    for _ in range(MISFITS_MAX + 1):
        stood.append(holding.phase)
        holding.doubt()
    assert (set(stood), holding.phase) == ({"new"}, "apart")


def test_a_row_that_is_held_for_a_moment_is_looked_at_again_at_once() -> None:
    holding = Holding(0, ROW)
    stood = []
    for now in (10.0, 10.0 + BRIEF_S / 2, 10.0 + BRIEF_S):
        holding.hold_off(now)
        stood.append(holding.phase)
    assert (stood, holding.sure) == (["new", "new", "apart"], False)
    holding.reread(ROW)
    holding.hold_off(99.0)
    assert holding.phase == "new"


def _cut(*entries: tuple[bytes, list[bytes]], asked: int = 10, head: Head = HEAD) -> Slice:
    holding = Holding(0, ROW)
    holding.after = b"3-10"
    return sliced(holding, holding.place, head, entries, asked)


def test_a_run_goes_as_far_as_it_is_contiguous() -> None:
    found = _cut(_entry(11), _entry(12), _entry(13))
    assert (found.cut, found.end) == ("", StreamPlace(b"3-13", 13, 13, 1600))
    found = _cut(_entry(11), _entry(13))
    assert (found.cut, found.end.n) == ("", 11), "the gap is the next batch's"


def test_entries_of_an_older_epoch_continue_the_watermark() -> None:
    assert _cut(_entry(11, epoch=2), _entry(12), _entry(13)).end.n == 13


def test_a_gap_ends_before_the_next_entry_or_at_the_head() -> None:
    found = _cut(_entry(13))
    assert (found.cut, found.end) == ("gap", StreamPlace(b"3-10", 12, 12, 1600 - 213))
    found = _cut()
    assert (found.cut, found.end) == ("gap", StreamPlace(b"3-10", 13, 13, 1600))


def test_a_full_reply_is_no_gap() -> None:
    assert _cut(_entry(11), asked=1).cut == ""


def test_entries_that_may_be_nobodys_are_told_from_gaps() -> None:
    assert _cut(_entry(11, epoch=1763637675000)).cut == "foreign"
    assert _cut(_entry(5)).cut == "foreign"
    assert _cut((b"18446744073709551615-1", [b"a", b"b"])).cut == "foreign"


def test_a_newer_format_cuts_where_it_stands() -> None:
    found = _cut(_entry(11), (b"3-12", [b"format", b"3"]))
    assert (found.cut, found.end.n) == ("newer", 11)
    found = _cut((b"3-13", [b"format", b"3"]))
    assert (found.cut, found.end.n) == ("gap", 12), "what comes before it is to be seen to first"


def test_what_looks_newer_where_no_commit_can_be_is_nobodys() -> None:
    assert _cut((b"1763637675000-0", [b"format", b"3"])).cut == "foreign"
    assert _cut((b"3-14", [b"format", b"3"]), head=HEAD._replace(n=10)).cut == "beyond"
    assert _cut((b"3-5", [b"format", b"3"])).cut == "foreign"


def test_nothing_is_taken_that_the_head_does_not_know_of() -> None:
    """A commit moves meta and stream at once, so what stands beyond may be none."""
    found = _cut(_entry(11), _entry(12), _entry(13), _entry(14))
    assert (found.cut, found.end.n, len(found.entries)) == ("", 13, 3)
    found = _cut(_entry(11), head=HEAD._replace(n=10))
    assert (found.cut, found.end.n, found.entries) == ("beyond", 10, [])
    found = _cut(_entry(14))
    assert (found.cut, found.end.n) == ("gap", 13), "what the head tells of is missing, and to be seen to first"


def test_a_gate_is_open_only_for_the_rows_epoch_on_the_rows_server() -> None:
    assert agree(ROW, HEAD, "r")
    assert not agree(ROW, HEAD, "other")
    assert not agree(ROW, HEAD._replace(epoch=4), "r")
    assert not agree(ROW, HEAD._replace(epoch=None), "r")
    assert not agree(ROW, HEAD._replace(replid=""), "r")
    assert not agree(ROW._replace(replid="other"), HEAD, "r")


def test_a_meta_that_is_not_ours_says_so() -> None:
    assert head_of([b"3", b"r", b"13", b"13", b"1600", b"10", b""]) == HEAD
    assert head_of([b""] * 7) == Head(None, "", 0, 0, 0, 0, 0)
    assert isinstance(head_of([b"x", b"r", b"1", b"1", b"1", b"1", b"1"]), str)
    assert head_of(b"WRONGTYPE") == "WRONGTYPE"


@given(some.lists(some.binary(max_size=5000)), some.lists(some.text()), some.lists(some.integers(-(2**63), 2**63 - 1)))
def test_columns_are_spelled_as_psycopg_spells_them(values: list[bytes], names: list[str], numbers: list[int]) -> None:
    names = [name.replace("\0", "").encode("utf-8", "replace").decode() for name in names]
    for ours, items in ((blobs(values), values), (texts(names), names)):
        assert not items or ours.wire[20:] == b"".join(struct.pack("!i", len(raw)) + raw for raw in _raw(items))
    assert integers(numbers).wire[20:] == b"".join(struct.pack("!iq", 8, number) for number in numbers)
    if values:
        dumper = Transformer().get_dumper(values, PyFormat.BINARY)
        assert bytes(dumper.dump(values) or b"") == blobs(values).wire


def _raw(items: list[bytes] | list[str]) -> list[bytes]:
    return [item if isinstance(item, bytes) else item.encode() for item in items]


def test_times_and_truths_are_spelled_in_wire_form() -> None:
    at = datetime(2000, 1, 1, 0, 0, 1, 7, tzinfo=UTC)
    assert times([at]).wire[20:] == struct.pack("!iq", 8, 1_000_007)
    assert truths([True, False]).wire[20:] == struct.pack("!i?i?", 1, True, 1, False)


def test_a_broken_tip_is_asked_for_anew_for_an_operator_may_have_mended_it() -> None:
    tips = TipCache(10)
    tips.put(0, {"a/1": Tip(1, "x")})
    tips.put(0, {"a/1": Tip(2, "y", broken=True)})
    assert tips.get(0, "a/1") is None


def test_tips_of_a_dropped_shard_are_forgotten_and_the_others_are_not() -> None:
    tips = TipCache(10)
    tips.put(0, {"a/1": Tip(1, "x")})
    tips.put(1, {"b/1": Tip(2, "y")})
    tips.drop(0)
    assert (tips.get(0, "a/1"), tips.get(1, "b/1")) == (None, Tip(2, "y"))
    tips.put(0, {"a/1": Tip(3, "z")})
    assert tips.get(0, "a/1") == Tip(3, "z")
    assert tips.get(1, "a/1") is None, "a key of one shard has no tip in another"
    tips.clear()
    assert len(tips) == 0


@given(some.lists(some.tuples(some.integers(0, 30), some.integers(1, 9))))
def test_what_is_remembered_is_the_newest_and_bounded(puts: list[tuple[int, int]]) -> None:
    tips, truth = TipCache(8), dict[str, Tip]()
    for number, version in puts:
        truth[f"a/{number}"] = Tip(version, str(version))
        tips.put(0, {f"a/{number}": truth[f"a/{number}"]})
        assert len(tips) <= 8
        assert tips.get(0, f"a/{number}") == truth[f"a/{number}"]
    assert all(tips.get(0, key) in (None, tip) for key, tip in truth.items())


INFO = """# Memory
used_memory:{used}
maxmemory:{limit}
maxmemory_policy:{policy}

# Keyspace
db0:keys=900,expires={here},avg_ttl=0
db3:keys=1,expires={there},avg_ttl=0
"""


@pytest.mark.parametrize(
    ("story", "short"),
    [
        ({"used": 95}, True),
        ({"used": 89}, False),
        ({"used": 95, "limit": 0}, False),
        ({"used": 95, "here": 1}, False),
        ({"used": 95, "there": 1}, False),
        ({"used": 95, "here": 1, "policy": "noeviction"}, True),
        ({"used": 95, "here": 1, "policy": "volatile-ttl"}, False),
    ],
)
def test_a_redis_that_is_full_of_what_may_not_leave_is_told(story: dict[str, Any], short: bool) -> None:
    facts = {"limit": 100, "policy": "volatile-lru", "here": 0, "there": 0} | story
    assert (shortage(INFO.format(**facts).replace("\n", "\r\n")) is not None) is short


async def test_a_worker_seldom_looks_for_garbage_for_it_makes_next_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds: list[tuple[int, ...]] = []

    class Stub:
        def __init__(self, settings: Any) -> None:
            thresholds.append(gc.get_threshold())

        def signalled(self) -> None:
            raise AssertionError("nobody signals")

        async def run(self) -> int:
            return 0

    monkeypatch.setattr(runner, "Runner", Stub)
    before = gc.get_threshold()
    try:
        assert await runner.run_worker(Settings(redis_url="redis://x", postgres_url="postgresql://x")) == 0
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    assert thresholds == [(runner.GARBAGE, *before[1:])]


def test_the_standby_that_the_holder_of_a_row_waits_for_is_named() -> None:
    told = _holder(7, "me", "", "active", "SyncRep", 3.2, "a")
    assert told.endswith("3 s: its COMMIT waits for a synchronous standby (synchronous_standby_names = 'a')")
    assert _holder(7, "me", "", "active", None, 3.2, "a").endswith("active/busy for 3 s")
