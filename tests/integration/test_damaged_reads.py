"""A version is read only if its row says what its hash is over: another one's data is never given in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Change, HistoryDamaged
from statecache.core.history import reader
from statecache.core.history.reader import HistoryReader
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush

Psql = psycopg.Connection[Any]
ROW = "WHERE key = 'runs/1' AND version = "
SWAP = (
    "UPDATE change a SET value = b.value, digest = b.digest, size = b.size FROM change b"
    " WHERE a.key = 'runs/1' AND b.key = a.key AND a.version + b.version = 5 AND a.version IN (2, 3)"
)
OTHER_VALUE = f"UPDATE change SET value = '{{\"n\":7}}' {ROW} 2"
DAMAGES = [
    f"UPDATE change SET op = 'delete' {ROW} 2",
    f"UPDATE change SET encoding = 'raw' {ROW} 2",
    f"UPDATE change SET schema = 'other:9' {ROW} 2",
    f"UPDATE change SET parent_change_id = 'x' {ROW} 2",
    f"UPDATE change SET digest = NULL, value = '{{}}' {ROW} 2",
    f"UPDATE change SET hash = sha256('another') {ROW} 2",
    SWAP,
]


@pytest.fixture
async def written(cache: AsyncStateCache, worker: Worker) -> AsyncStateCache:
    """A client, and four versions of a key that Postgres holds."""
    for number in range(1, 5):
        await cache.set("runs/1", {"n": number})
    await flush(worker)
    return cache


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_row_that_does_not_fit_its_hash_is_never_read(
    written: AsyncStateCache, psql: Psql, damage: str
) -> None:
    state = await written.get_at("runs/1", version=2)
    assert state is not None
    assert state.position is not None
    psql.execute(damage.encode())
    for read in (
        written.get_at("runs/1", version=2),
        written.get_at("runs/1", position=state.position),
        written.get_group_at("runs/1", position=state.position),
        written.diff("runs/1", 2),
        written.diff("runs/1", 1, 2),
        written.rollback("runs/1", 2),
        written.branch("runs/1", "runs/2", at=2),
    ):
        with pytest.raises(HistoryDamaged) as caught:
            await read
        assert (caught.value.key, caught.value.version) == ("runs/1", 2)
    last = await written.get_at("runs/1", version=4)
    assert last is not None
    assert last.value == {"n": 4}
    now = await written.get("runs/1")
    assert now is not None
    assert (now.version, await written.get("runs/2")) == (4, None)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_listing_gives_what_comes_before_a_damaged_row_and_then_names_it(
    written: AsyncStateCache, psql: Psql, damage: str, values: bool
) -> None:
    assert [one.version async for one in written.history("runs/1", values=values)] == [1, 2, 3, 4]
    psql.execute(damage.encode())
    assert await _until_damaged(written.history("runs/1", values=values), 2) == [1]
    if damage == SWAP or "hash =" in damage:  # the one behind it does not fit either
        assert await _until_damaged(written.history("runs/1", values=values, reverse=True), 3) == [4]
    else:
        assert await _until_damaged(written.history("runs/1", values=values, reverse=True), 2) == [4, 3]
    behind = [one.version async for one in written.history("runs/1", since=4, values=values)]
    assert behind == [4]
    await written.set("runs/1", {"n": 5})
    newest = [one.version async for one in written.history("runs/1", since=4, values=values)]
    assert newest == [4, 5], "what is not flushed comes behind what Postgres holds"


async def _followed(changes: AsyncIterator[Change[Any]]) -> list[Any]:
    """Return the versions that a reader is given, or the message where it is told of a damaged one, to the end."""
    told: list[Any] = []
    while True:
        try:
            told.append((await anext(changes)).version)
        except HistoryDamaged as error:
            told.append(f"{error.version} damaged")
        except StopAsyncIteration:
            return told


async def _until_damaged(history: AsyncIterator[Change[Any]], named: int) -> list[Any]:
    """Return the versions that are given before the damaged one is named."""
    *given, last = await _followed(history)
    assert last == f"{named} damaged"
    return given


async def test_a_value_that_is_not_what_its_digest_says_is_never_listed(written: AsyncStateCache, psql: Psql) -> None:
    psql.execute(OTHER_VALUE.encode())
    headers = [one.version async for one in written.history("runs/1")]
    assert headers == [1, 2, 3, 4], "a listing without values reads none, so it compares none"
    with pytest.raises(HistoryDamaged, match="digest") as caught:
        assert [one.value async for one in written.history("runs/1", values=True)]
    assert caught.value.version == 2
    with pytest.raises(HistoryDamaged, match="digest"):
        await written.diff("runs/1", 2)


async def test_pages_are_compared_with_the_hash_before_them(
    written: AsyncStateCache, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE", 2)
    monkeypatch.setattr(HistoryReader._page, "__kwdefaults__", {"limit": 2})
    for reverse in (False, True):
        versions = [one.version async for one in written.history("runs/1", reverse=reverse)]
        assert versions == ([4, 3, 2, 1] if reverse else [1, 2, 3, 4])
    psql.execute(f"UPDATE change SET hash = sha256('another') {ROW} 2".encode())
    with pytest.raises(HistoryDamaged) as caught:
        assert [one.version async for one in written.history("runs/1", since=3)]
    assert caught.value.version == 3, "the hash before it lies on no page"


async def test_rows_without_a_hash_or_behind_one_that_is_not_there_are_read(
    written: AsyncStateCache, psql: Psql
) -> None:
    """As those of an earlier release, and those behind rows that an operator has deleted, or an erasure has blanked."""
    psql.execute(f"DELETE FROM change {ROW} 1".encode())
    psql.execute(f"UPDATE change SET hash = NULL, digest = NULL {ROW} 3".encode())
    assert [one.version async for one in written.history("runs/1", values=True)] == [2, 3, 4]
    for version in (2, 3, 4):
        state = await written.get_at("runs/1", version=version)
        assert state is not None
        assert state.value == {"n": version}


@pytest.mark.parametrize("damage", [*DAMAGES, OTHER_VALUE])
async def test_a_reader_of_changes_is_told_of_a_damaged_one_in_its_place_and_goes_on_behind_it(
    written: AsyncStateCache, psql: Psql, damage: str
) -> None:
    assert await _followed(written.changes("runs/", follow=False)) == [1, 2, 3, 4]
    psql.execute(damage.encode())
    third = "3 damaged" if damage == SWAP or "hash =" in damage else 3
    feed = written.changes("runs/", follow=False)
    assert await _followed(feed) == [1, "2 damaged", third, 4]
    async with written.changes("runs/", consumer="one", follow=False) as named:
        assert await _followed(named) == [1, "2 damaged", third, 4]
    assert await _followed(written.changes("runs/", consumer="one", follow=False)) == []
    half = written.changes("runs/", follow=False)
    assert (await anext(half)).version == 1
    with pytest.raises(HistoryDamaged):
        await anext(half)
    assert await _followed(written.changes("runs/", since=half.cursor, follow=False)) == [third, 4]


async def test_of_deltas_behind_a_damaged_value_each_is_told_in_its_place(
    cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    lines = [f"{n * 7919}" for n in range(200)]
    for number in range(1, 7):
        await cache.set("runs/1", {"lines": [*lines, f"line {number}"]})
        await cache.set("runs/2", {"lines": [*lines, f"line {number}"]})
    await flush(worker)
    assert await _followed(cache.changes("runs/1", follow=False)) == [1, 2, 3, 4, 5, 6]
    broken = "set_byte(packed, octet_length(packed) - 3, get_byte(packed, octet_length(packed) - 3) # 1)"
    psql.execute(f"UPDATE change SET packed = {broken} {ROW} 4".encode())
    behind = [f"{version} damaged" for version in (4, 5, 6)]
    assert await _followed(cache.changes("runs/1", follow=False)) == [1, 2, 3, *behind]
    both = await _followed(cache.changes("runs/", follow=False))
    assert sorted(map(str, both)) == sorted(map(str, [1, 1, 2, 2, 3, 3, 4, 5, 6, *behind]))


@pytest.mark.parametrize(
    "damage",
    [
        f"UPDATE change SET schema = 'other:9' {ROW} 4",
        "UPDATE state SET value = '7' WHERE key = 'runs/1'",
    ],
)
async def test_a_watcher_is_told_of_a_damaged_one_and_goes_on(
    written: AsyncStateCache, worker: Worker, psql: Psql, damage: str
) -> None:
    await written.set("runs/2", 2)
    await flush(worker)
    psql.execute(damage.encode())
    async with written.watch("runs/", initial=True) as watch:
        with pytest.raises(HistoryDamaged) as caught:
            await anext(watch)
        assert (caught.value.key, caught.value.version) == ("runs/1", 4)
        assert (await anext(watch)).key == "runs/2"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("packed = set_byte(packed, 20, 255 - get_byte(packed, 20))", [4, 5, 6]),
        ("digest = sha256('another')", []),
    ],
)
async def test_a_listing_of_values_goes_on_behind_each_damaged_one(
    cache: AsyncStateCache, worker: Worker, psql: Psql, damage: str, told: list[int]
) -> None:
    """Those behind it are read from it, so each of them is damaged as well, up to the next keyframe; or none is."""
    for number in range(1, 9):
        factor = 7919 if number < 7 else 104729
        await cache.set("runs/1", {"lines": [f"{n * factor}" for n in range(200)], "number": number})
    await flush(worker)
    keyframes = psql.execute("SELECT version FROM change WHERE keyframe IS NULL ORDER BY 1").fetchall()
    assert keyframes == [(1,), (7,)]
    psql.execute(f"UPDATE change SET {damage} {ROW} 3".encode())
    since, named, given = 1, list[int](), list[int]()
    while len(named) < 9:
        try:
            given += [one.version async for one in cache.history("runs/1", since=since, values=True)]
            break
        except HistoryDamaged as error:
            named.append(error.version or 0)
            since = named[-1] + 1
    assert named == [3, *told]
    assert given == [version for version in range(4, 9) if version not in told]
