"""Listings with bounds: which keys, which values, in which order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings, State, UsageError
from statecache.keys import KeySpace
from statecache.rules.filters import Selection
from statecache.sql import statement
from statecache_workers.worker import Worker
from tests.fixtures.flusher import MakeWorker, flush
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis

NAMES = [f"runs/{number:02d}" for number in range(40)]


async def _states(listing: AsyncIterator[State[Any]]) -> list[State[Any]]:
    return [state async for state in listing]


async def _keys(listing: AsyncIterator[State[Any]]) -> list[str]:
    return [state.key async for state in listing]


@pytest.fixture
async def half_flushed(client: AsyncStateCache, worker: Worker) -> list[str]:
    """States of which some are in Postgres, some dirty, and some both; one deleted in either tier. Return the rest."""
    for name in NAMES:
        await client.set(name, {"n": 1})
    await client.delete(NAMES[3])
    await flush(worker)
    for name in (*NAMES[30:], "runs/x1", "runs/x2", *NAMES[10:13]):
        await client.set(name, {"n": 2})
    await client.delete(NAMES[20])
    await client.set("other/1", 1)
    return sorted({*NAMES, "runs/x1", "runs/x2"} - {NAMES[3], NAMES[20]})


@every_redis
@pytest.mark.parametrize("page", [3, 500])
async def test_keys_lie_between_bounds_in_either_direction(
    client: AsyncStateCache, half_flushed: list[str], page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PAGE", "_PAGE_MIN", "_DIRTY_MIN"):
        monkeypatch.setattr(f"statecache.core.read.listing.{name}", page)
    there = half_flushed
    assert await _keys(client.list("runs/")) == there
    assert await _keys(client.list("runs/", order="-key")) == there[::-1]
    for after, before in ((NAMES[3], NAMES[31]), (NAMES[0], "runs/x1"), ("runs/", NAMES[1]), ("runs/x", "runs/z")):
        wanted = [key for key in there if after < key < before]
        assert await _keys(client.list("runs/", after=after, before=before)) == wanted
        assert await _keys(client.list("runs/", after=after, before=before, order="-key")) == wanted[::-1]
        assert sorted(await _keys(client.list("runs/", after=after, before=before, order="newest"))) == wanted
        for limit in (1, 2, 7):
            assert await _keys(client.list("runs/", after=after, before=before, limit=limit)) == wanted[:limit]
            down = await _keys(client.list("runs/", after=after, before=before, limit=limit, order="-key"))
            assert down == wanted[::-1][:limit]


@pytest.mark.parametrize("down", [True, False])
async def test_the_last_name_of_a_page_bounds_the_next(
    client: AsyncStateCache, half_flushed: list[str], down: bool
) -> None:
    runs, found, last = client.namespace("runs"), list[str](), None
    while page := await _keys(
        runs.list(before=last, order="-key", limit=7) if down else runs.list(after=last, limit=7)
    ):
        found += page
        last = page[-1].removeprefix("runs/")
    assert found == (half_flushed[::-1] if down else half_flushed)


@every_redis
async def test_the_oldest_come_first_or_the_newest(client: AsyncStateCache, half_flushed: list[str]) -> None:
    newest = await _states(client.list("runs/", order="newest"))
    assert [state.key for state in newest[:2]] == [NAMES[12], NAMES[11]]
    assert sorted(state.key for state in newest) == half_flushed
    assert all(one.updated_at >= other.updated_at for one, other in pairwise(newest))
    oldest = await _states(client.list("runs/", order="oldest"))
    assert [state.key for state in oldest] == [state.key for state in newest][::-1]
    for limit in (1, 5, 30):
        assert await _states(client.list("runs/", order="newest", limit=limit)) == newest[:limit]
        assert await _states(client.list("runs/", order="oldest", limit=limit)) == oldest[:limit]


async def test_without_values_nothing_of_them_is_read(
    client: AsyncStateCache, half_flushed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[Any]()
    listing = client._runtime.listing
    fetch, exchange = listing._postgres.fetch_each, listing._dirty._read

    async def fetched(*given: Any, **more: Any) -> Any:
        found = await fetch(*given, **more)
        read.extend(row[2] for row in found[-1] if row[2])
        return found

    async def exchanged(*given: Any, **more: Any) -> Any:
        answer = await exchange(*given, **more)
        read.extend(part for reply in answer[1] for part in reply if part[:1] == b"{")
        return answer

    monkeypatch.setattr(listing._postgres, "fetch_each", fetched)
    monkeypatch.setattr(listing._dirty, "_read", exchanged)
    order: Any
    for order in ("key", "-key", "newest", "oldest"):
        states = await _states(client.list("runs/", order=order, values=False))
        assert sorted(state.key for state in states) == half_flushed
        assert {state.value for state in states} == {None}
        assert not read
    one = (await _states(client.list("runs/", values=False, limit=1)))[0]
    assert (await client.set(one.key, 3, expected=one)).version == one.version + 1
    await _states(client.list("runs/"))
    assert len(read) >= len(half_flushed)


@pytest.fixture
async def lazy(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """An asynchronous client, whose listings go on while it does something else."""
    async with AsyncStateCache(settings=settings) as client:
        yield client


@every_redis
async def test_what_is_deleted_during_a_listing_makes_room_for_what_comes_next(
    lazy: AsyncStateCache, worker: Worker
) -> None:
    """Tasks of one process that each take what is oldest, and remove it: nobody is sent past what is still there."""
    order: Any
    for order in ("key", "-key", "newest", "oldest"):
        await lazy.set_many(dict.fromkeys(NAMES, 1))
        await flush(worker)
        await lazy.set_many({"runs/x1": 1, "runs/x2": 1})
        there = await _keys(lazy.list("runs/", order=order))
        listing = lazy.list("runs/", order=order, limit=10)
        found = [(await anext(listing)).key]
        for name in there[2:8]:
            await lazy.delete(name)
        found += await _keys(listing)
        assert found == [*there[:2], *there[8:16]]


async def test_what_has_changed_during_a_listing_is_not_given_twice(lazy: AsyncStateCache, worker: Worker) -> None:
    await lazy.set_many(dict.fromkeys(NAMES, 1))
    await flush(worker)
    there = await _keys(lazy.list("runs/", order="oldest"))
    listing = lazy.list("runs/", order="oldest", limit=len(there))
    found = [(await anext(listing)).key]
    await lazy.set(there[0], 2)
    await lazy.delete(there[1])
    await flush(worker)
    found += await _keys(listing)
    assert found == [there[0], *there[2:]]


@pytest.mark.parametrize("known", [False, True], ids=["never analysed", "analysed"])
async def test_each_order_is_that_of_an_index(
    make_settings: MakeSettings, make_client: MakeClient, make_worker: MakeWorker, known: bool,
    psql: psycopg.Connection[Any], settings: Settings,
) -> None:  # fmt: skip
    """A schema that no other test has filled: what was told of its rows then would outlast them."""
    settings = make_settings(postgres_schema=f"{settings.prefix}_fresh")
    psql.execute(f"SET search_path = {settings.postgres_schema}".encode())
    psql.execute("ALTER TABLE state SET (autovacuum_enabled = off)")
    client, worker = make_client(settings), make_worker(settings)
    await client.set_many({f"runs/{number}": number for number in range(2000)})
    await flush(worker)
    if known:
        psql.execute("ANALYZE state")
    indexes = {
        "list_by_key": "Scan using state_pkey", "list_by_key_down": "Scan Backward using state_pkey",
        "list_newest": "Scan Backward using state_age", "list_oldest": "Scan using state_age",
    }  # fmt: skip
    cursor = psycopg.ClientCursor(psql)
    for name, index in indexes.items():
        asked = {"prefix": "runs/", "values": True, "bytes": 1 << 20, "limit": 5, **Selection(prefix="runs/").bounds()}
        text = cursor.mogrify(statement(name, settings.postgres_schema), asked)
        with psql.transaction():
            psql.execute(statement("read_limits", settings.postgres_schema).encode(), {"statement": "10000"})
            plan = psql.execute(b"EXPLAIN " + text.encode()).fetchall()
        assert f"Index {index} on state" in str(plan)


async def test_values_are_compared_alike_in_postgres_and_here(
    make_client: MakeClient, settings: Settings, worker: Worker
) -> None:
    client = make_client(settings)
    values: dict[str, Any] = {
        "1": {"meta": {"source": "input"}}, "2": {"meta": {"source": "output"}}, "3": {"meta": "input"},
        "4": [{"meta": {"source": "input"}}], "5": {"meta": [{"source": "input"}]},
        "6": {"meta": {"source": ["input"]}}, "7": {"n": 1}, "8": {"n": 1.0}, "9": {"n": True},
        "a": {"n": "1"}, "b": {"n": None}, "c": {},
        "d": {"n": 1.5, "meta": {"source": "input"}}, "e": {"n": 1e22}, "f": {"n": 10**22}, "g": "input", "h": None,
        "i": {"meta": {"source": "input"}, "other": "a\0b"}, "j": {"n": 1, "other": "\\u0000"}, "k": {"n": -0.0},
        "l": {"n": 0}, "m": {"meta": {"source": "ï🔑"}}, "n": {"n": False}, "o": {"": {"n": 1}}, "p": {"n": 0.1},
    }  # fmt: skip
    wanted: list[tuple[dict[str, Any], str]] = [
        ({"meta.source": "input"}, "1d"), ({"n": 1}, "78j"), ({"n": 1.0}, "78j"), ({"n": True}, "9"), ({"n": "1"}, "a"),
        ({"n": None}, "b"), ({"n": 1.5, "meta.source": "input"}, "d"), ({"n": 1e22}, "ef"), ({"n": 0}, "kl"),
        ({"meta.source": "ï🔑"}, "m"), ({"n": False}, "n"), ({"n": 0.1}, "p"), ({"meta.0.source": "input"}, ""),
        ({"absent": None}, ""),
    ]  # fmt: skip
    await client.namespace("runs").set_many(values)
    packed = client.namespace("runs", encoding="msgpack")
    await packed.set("z", {"n": 1, "meta": {"source": "input"}})
    order: Any
    for _ in range(2):
        for where, names in wanted:
            for order in ("key", "-key", "newest", "oldest"):
                for more in ({}, {"values": False}):
                    found = await _keys(client.list("runs/", where=where, order=order, **more))  # type: ignore[call-overload]
                    assert sorted(found) == [f"runs/{name}" for name in names], (where, order)
        await flush(worker)


async def test_the_newest_value_decides_wherever_it_is(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    for number in range(6):
        await client.set(f"runs/{number}", {"done": number % 2 == 0})
    await flush(worker)
    await client.set("runs/0", {"done": False})
    await client.set("runs/1", {"done": True})
    await client.delete("runs/2")
    order: Any
    for order in ("key", "newest"):
        assert sorted(await _keys(client.list("runs/", where={"done": True}, order=order))) == ["runs/1", "runs/4"]
        assert len(await _keys(client.list("runs/", where={"done": True}, order=order, limit=1))) == 1
    await client.set("runs/4", {"done": False})
    redis_raw.unlink(keys.state("runs/3"))
    assert await _keys(client.list("runs/", where={"done": True})) == ["runs/1"]


async def test_what_cannot_be_a_bound_is_refused(client: AsyncStateCache) -> None:
    wrong: list[dict[str, Any]] = [
        {"order": "size"}, {"limit": 0}, {"limit": 2.5}, {"limit": "5"},
        {"after": 3}, {"before": "a\0b"}, {"after": ""}, {"where": {"": 1}},
        {"where": {"a..b": 1}}, {"where": {"a": [1]}}, {"where": {"a": float("nan")}}, {"where": {"a": "\0"}},
        {"where": {"a": "\ud800"}}, {"where": {3: 1}}, {"where": "a"},
    ]  # fmt: skip
    for more in wrong:
        with pytest.raises(UsageError):
            await _keys(client.list("runs/", **more))


async def test_a_limit_may_be_greater_than_any_number_of_states(client: AsyncStateCache, worker: Worker) -> None:
    await client.set("runs/1", 1)
    await flush(worker)
    order: Any
    for order in ("key", "-key", "newest", "oldest"):
        listing = client.list("runs/", order=order, limit=2**64, values=0)  # type: ignore[call-overload]
        assert [(state.key, state.value) async for state in listing] == [("runs/1", None)]
