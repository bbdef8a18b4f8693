"""What was found out ahead of how values will be kept is used behind the very values that it was found out behind."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from statecache.history import Parent, keep
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache_workers import values_ahead
from statecache_workers.owned_shards import Head, Holding, OwnedRow
from statecache_workers.slices import Entry, Slice
from statecache_workers.tip_cache import TipCache
from statecache_workers.values_ahead import ValuesAhead

AT = datetime(2026, 11, 20, tzinfo=UTC)
SERVER = "f" * 40
SHARD = 3


def change(version: int, key: str = "runs/1") -> ChangeRecord:
    said = " ".join(f"{key} said {number * 7919 % 997}" for number in range(100 + version))
    return ChangeRecord(
        change_id=f"c{version}", key=key, op="set", version=version,
        parent_change_id=f"c{version - 1}" if version > 1 else "", value=said.encode(), encoding="json", schema="",
    )  # fmt: skip


def slice_of(changes: list[ChangeRecord]) -> Slice:
    held = Holding(SHARD, OwnedRow(1, SERVER, 0, 0, 0, 0))
    entries = []
    for n, one in enumerate(changes, 1):
        position = Position(1, n)
        commit = ChangeSet(
            position=position, change_id=one.change_id, at=AT, writer="w", actor="", reason="", entries=n, bytes=n,
            changes=(one,),
        )  # fmt: skip
        entries.append(Entry([], position, commit))
    last = len(changes)
    return Slice(holding=held, head=Head(1, SERVER, last, last, last, 0, 0), start=held.place, end=held.place,
                 entries=[*entries, Entry([], Position(1, last + 1), None, "it cannot be read")])  # fmt: skip


def made(values: ValuesAhead, changes: list[ChangeRecord], latest: tuple[str, ...] = ()) -> None:
    asyncio.run(values.make([slice_of(changes)], latest, asyncio.Event()))


@pytest.fixture
def reckoned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions that are reckoned, in turn."""
    versions: list[int] = []

    def noted(one: ChangeRecord, parent: Parent | None) -> Any:
        versions.append(one.version)
        return keep(one, parent)

    monkeypatch.setattr(values_ahead, "keep", noted)
    return versions


def test_what_was_made_ahead_is_what_would_be_made_now_and_is_not_made_again(reckoned: list[int]) -> None:
    values, changes = ValuesAhead(TipCache(100, 10_000_000)), [change(version) for version in range(1, 6)]
    _, parent = keep(changes[0], None)
    values.writing({SHARD: {"runs/1": parent}})
    made(values, changes[1:])
    assert reckoned == [2, 3, 4, 5]
    reckoned.clear()
    behind, plainly = parent, parent
    for one in changes[1:]:
        kept, behind = values.keep(one, behind)
        expected, plainly = keep(one, plainly)
        assert (kept, behind) == (expected, plainly)
        assert kept.keyframe == 1
    assert reckoned == []


def test_a_key_that_the_batch_before_did_not_write_goes_on_from_what_is_remembered(reckoned: list[int]) -> None:
    tips = TipCache(100, 10_000_000)
    values, (first, second) = ValuesAhead(tips), (change(1), change(2))
    tips.put(SHARD, {}, {"runs/1": keep(first, None)[1]})
    made(values, [second])
    assert values.keep(second, values.parent(SHARD, "runs/1"))[0].keyframe == 1
    assert reckoned == [2]


def test_where_keyframes_were_moved_meanwhile_a_value_is_kept_anew() -> None:
    tips = TipCache(100, 10_000_000)
    values, (first, second) = ValuesAhead(tips), (change(1), change(2))
    tips.put(SHARD, {}, {"runs/1": keep(first, None)[1]})
    made(values, [second])
    tips.moved(SHARD, 1)
    assert values.keep(second, values.parent(SHARD, "runs/1")) == keep(second, None)


def test_a_change_that_only_looks_like_the_one_that_was_read_is_kept_by_its_own_bytes() -> None:
    values, one = ValuesAhead(TipCache(100, 10_000_000)), change(1)
    made(values, [one])
    other = ChangeRecord(
        change_id="c1", key="runs/1", op="set", version=1, parent_change_id="", value=b"other" * 100, encoding="json",
        schema="",
    )  # fmt: skip
    assert values.keep(other, None) == keep(other, None) != values.keep(one, None)


def test_nothing_is_made_of_namespaces_that_keep_no_values_and_once_the_batch_is_written(reckoned: list[int]) -> None:
    values = ValuesAhead(TipCache(100, 10_000_000))
    made(values, [change(1, "cache/1"), change(1, "runs/1")], latest=("cache",))
    assert len(reckoned) == 1
    written = asyncio.Event()
    written.set()
    asyncio.run(values.make([slice_of([change(1)])], (), written))
    assert len(reckoned) == 1


def test_the_loop_has_its_turns_while_a_large_batch_is_gone_through() -> None:
    values = ValuesAhead(TipCache(100, 10_000_000))
    changes = [change(version) for version in range(1, 200)]

    had: list[None] = []
    counted: list[int] = []

    async def turns() -> None:
        loop = asyncio.get_running_loop()

        def turn() -> None:
            had.append(None)
            loop.call_soon(turn)

        turn()
        had.clear()
        await values.make([slice_of(changes)], (), asyncio.Event())

        counted.append(len(had))

    asyncio.run(turns())
    assert counted[0] > sum(len(one.value) for one in changes) // (256 * 1024) > 0
