"""What was read ahead is used only if it is all that comes next, and is no more than a part of a batch."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from statecache.errors import RedisUnavailable
from statecache.settings import Settings
from statecache_workers.owned_shards import Head, Heads, Holding, OwnedRow
from statecache_workers.read_ahead import (
    ENTRIES_MAX,
    UNREAD_PART,
    Lookout,
    ReadAhead,
    entries_of_each,
    pending,
    still_next,
    whole,
)
from statecache_workers.sizing import BatchSize
from statecache_workers.slices import Slice
from statecache_workers.streams import Wanted
from statecache_workers.tip_cache import TipCache
from statecache_workers.values_ahead import ValuesAhead

SERVER = "f" * 40


def holding(shard: int, *, flushed: int = 5, size: int = 500, phase: Any = "open") -> Holding:
    held = Holding(shard, OwnedRow(1, SERVER, flushed, flushed, size, 0))
    held.after, held.phase = f"1-{flushed}".encode(), phase
    return held


def head(n: int, *, epoch: int = 1) -> Head:
    return Head(epoch, SERVER, n, n, 100 * n, 0, 0)


def heads(**of: Any) -> Heads:
    return Heads(server=SERVER, now_ms=0, seen=0.0, of={int(shard[1:]): one for shard, one in of.items()})


def up_to(held: Holding, n: int) -> Slice:
    return Slice(holding=held, head=head(n), start=held.place, end=held.place._replace(n=n))


def test_a_survey_counts_where_it_read_all_that_the_heads_tell_of() -> None:
    held = {0: holding(0), 1: holding(1)}
    slices = [up_to(held[0], 7)]
    assert whole(heads(s0=head(7), s1=head(5)), slices, held).slices == slices
    assert whole(heads(s0=head(6), s1=head(5)), slices, held).slices == slices, "what came behind the heads too"


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"s0": head(8), "s1": head(5)}, id="more than was read"),
        pytest.param({"s0": head(7), "s1": head(6)}, id="another shard has what was not read"),
        pytest.param({"s0": head(7), "s1": head(5, epoch=2)}, id="a shard of another epoch"),
        pytest.param({"s0": head(7), "s1": "its meta holds something else"}, id="a head that cannot be read"),
    ],
)
def test_a_survey_leaves_it_to_the_heads_where_anything_is_special(told: dict[str, Any]) -> None:
    held = {0: holding(0), 1: holding(1)}
    found = whole(heads(**told), [up_to(held[0], 7)], held)
    assert (found.slices, set(found.heads.of)) == ([], {0, 1})


def test_a_shard_that_is_not_open_hinders_no_survey() -> None:
    held = {0: holding(0), 1: holding(1, phase="apart")}
    slices = [up_to(held[0], 7)]
    assert whole(heads(s0=head(7), s1=head(9, epoch=2)), slices, held).slices == slices


def test_what_was_read_ahead_is_dropped_when_the_shard_has_moved() -> None:
    held = {0: holding(0)}
    ahead = ReadAhead(heads(s0=head(7)), [up_to(held[0], 7)])
    assert still_next(ahead, held) == ahead.slices
    assert still_next(ahead, {0: holding(0)}) == [], "it was lost and taken again"
    held[0].doubt()
    assert still_next(ahead, held) == []
    held[0].phase = "open"
    held[0].move(held[0].place._replace(n=6), excepted=0)
    assert still_next(ahead, held) == []


def test_a_survey_reads_no_more_of_many_shards_than_a_part_of_a_batch() -> None:
    settings = Settings(redis_url="redis://x", postgres_url="postgresql://x")
    small = [holding(shard) for shard in range(64)]
    assert entries_of_each(small, settings) == ENTRIES_MAX
    large = settings.flush_bytes_max // 64
    assert entries_of_each([*small[1:], holding(0, flushed=1, size=large)], settings) == 0
    assert entries_of_each(small, settings.model_copy(update={"flush_batch_max": 63})) == 0


def test_what_is_pending_is_what_the_heads_tell_beyond_the_rows() -> None:
    held = {0: holding(0), 1: holding(1), 2: holding(2)}
    assert pending(heads(s0=head(9), s1=head(4), s2="no"), held) == 4


class _Streams:
    """Streams of shards that hold more than is flushed; it notes what is asked for, in turn."""

    def __init__(self, told: Heads, *, fault: Exception | None = None) -> None:
        self.asked: list[Any] = []
        self._told, self._fault = told, fault

    async def heads(self, _: Any, shards: Any) -> Heads:
        self.asked.append(("heads", list(shards)))
        return self._told

    async def read(self, _: Any, wanted: list[Wanted]) -> list[Slice]:
        self.asked.append([(one.holding.shard, one.start.n, one.most) for one in wanted])
        if self._fault is not None:
            raise self._fault
        return [up_to(one.holding, one.start.n + one.most) for one in wanted]


def _lookout(streams: _Streams, **given: Any) -> Lookout:
    settings = Settings(redis_url="redis://x", postgres_url="postgresql://x", flush_batch_max=20, **given)
    size = BatchSize(20, settings.flush_bytes_max, timeout_s=settings.timeout_s)
    return Lookout(settings, cast("Any", streams), size, ValuesAhead(TipCache(10)))


def _read_behind(lookout: Lookout, held: dict[int, Holding], slices: list[Slice]) -> ReadAhead | None:
    link: Any = None
    return asyncio.run(lookout.read_behind(link, held, slices, latest=(), written=asyncio.Event()))


def test_what_comes_behind_a_batch_is_read_while_it_is_written_heads_first() -> None:
    held = {0: holding(0), 1: holding(1)}
    streams = _Streams(heads(s0=head(9), s1=head(40)))
    ahead = _read_behind(_lookout(streams), held, [up_to(held[0], 7)])
    assert streams.asked == [("heads", [0, 1]), [(0, 7, 2), (1, 5, 18)]]
    assert ahead is not None
    assert ([one.end.n for one in ahead.slices], ahead.more) == ([9, 23], True)


def test_where_that_is_all_that_the_heads_tell_of_nothing_is_read_behind_it_in_turn() -> None:
    held = {0: holding(0)}
    ahead = _read_behind(_lookout(_Streams(heads(s0=head(9)))), held, [up_to(held[0], 7)])
    assert ahead is not None
    assert not ahead.more


@pytest.mark.parametrize(
    ("told", "given"),
    [
        pytest.param({"s0": head(7)}, {}, id="there is nothing behind it"),
        pytest.param({"s0": head(9, epoch=2)}, {}, id="another epoch has begun"),
        pytest.param({"s0": "its meta holds something else"}, {}, id="its head cannot be read"),
        pytest.param({"s0": head(9)}, {"fence": "off"}, id="without a fence"),
    ],
)
def test_nothing_is_read_ahead_of_what_may_not_come_next(told: dict[str, Any], given: dict[str, Any]) -> None:
    held = {0: holding(0)}
    streams = _Streams(heads(**told))
    assert _read_behind(_lookout(streams, **given), held, [up_to(held[0], 7)]) is None
    assert [one for one in streams.asked if isinstance(one, list)] == []


def test_a_batch_that_left_nothing_behind_has_nothing_read_ahead() -> None:
    streams = _Streams(heads(s0=head(9)))
    assert _read_behind(_lookout(streams), {0: holding(0)}, []) is None
    assert streams.asked == []


def test_what_goes_wrong_with_it_is_left_to_the_next_turn() -> None:
    held = {0: holding(0)}
    streams = _Streams(heads(s0=head(9)), fault=RedisUnavailable("refused", detail="BUSY"))
    assert _read_behind(_lookout(streams), held, [up_to(held[0], 7)]) is None


def test_of_a_backlog_a_part_of_a_batch_is_read_first() -> None:
    held = holding(0)
    lookout = _lookout(_Streams(heads(s0=head(100))))
    able = {0: (held, head(100), held.place)}
    (first,), more = lookout.share_out(able, part=UNREAD_PART)
    assert (first.most, more) == (20 // UNREAD_PART, True)
    (whole_batch,), more = lookout.share_out(able)
    assert (whole_batch.most, more) == (20, True)
