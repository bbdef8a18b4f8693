"""The first page of a listing is read before what is dirty: it counts only where nothing was flushed in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from statecache import AsyncStateCache, PostgresUnavailable, RedisUnavailable, Settings, Unavailable
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeSettings
from tests.support.fault_proxy import FaultProxy

NAMES = [f"runs/{number}" for number in range(4)]
ORDERS: list[Any] = ["key", "-key", "newest", "oldest"]


@pytest.fixture
async def other(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """Another client."""
    async with AsyncStateCache(settings=settings) as client:
        yield client


def _meanwhile(cache: AsyncStateCache, what: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something done after Postgres has answered for the first time, and before what is dirty is read."""
    postgres = cache._runtime.postgres
    fetch = postgres.fetch_each

    async def first(*given: Any, beside: Any = None, **more: Any) -> Any:
        rows = await fetch(*given, **more)
        if beside is not None:
            monkeypatch.setattr(postgres, "fetch_each", fetch)
            await what()
            await beside()
        return rows

    monkeypatch.setattr(postgres, "fetch_each", first)


async def _forgotten(name: str, worker: Worker, redis_raw: Any, keys: KeySpace) -> None:
    """Flush a state, and have Redis lose what it knows of it, as once its entries have left and it was evicted."""
    await flush(worker)
    redis_raw.zrem(keys.unflushed(keys.shard(name)), name)
    redis_raw.unlink(keys.state(name))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("what", ["create", "set", "delete"])
async def test_what_was_flushed_and_left_redis_in_between_is_listed_as_it_is(
    what: str, order: Any, cache: AsyncStateCache, other: AsyncStateCache, worker: Worker, redis_raw: Any,
    keys: KeySpace, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    await other.set_many(dict.fromkeys(NAMES, 1))
    await flush(worker)
    name = "runs/5" if what == "create" else NAMES[2]

    async def meanwhile() -> None:
        await (other.delete(name) if what == "delete" else other.set(name, 2))
        await _forgotten(name, worker, redis_raw, keys)

    _meanwhile(cache, meanwhile, monkeypatch)
    found = {state.key: state.value async for state in cache.list("runs/", order=order, limit=10)}
    wanted = dict.fromkeys(NAMES, 1) | {name: 2}
    if what == "delete":
        del wanted[name]
    assert found == wanted


@pytest.mark.parametrize("order", ORDERS)
async def test_what_was_written_in_between_is_listed(
    order: Any, cache: AsyncStateCache, other: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await other.set_many(dict.fromkeys(NAMES, 1))
    await flush(worker)

    async def meanwhile() -> None:
        await other.set("runs/5", 2)
        await other.delete(NAMES[0])

    _meanwhile(cache, meanwhile, monkeypatch)
    found = {state.key: state.value async for state in cache.list("runs/", order=order, limit=10)}
    assert found == dict.fromkeys(NAMES[1:], 1) | {"runs/5": 2}


@pytest.mark.parametrize("order", ORDERS)
async def test_what_was_dirty_and_has_left_redis_before_it_was_read_is_listed(
    order: Any, cache: AsyncStateCache, other: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    await other.set_many(dict.fromkeys(NAMES, 1))
    await flush(worker)
    await other.set_many({NAMES[1]: 2, "runs/5": 2})
    await other.delete(NAMES[2])
    dirty = cache._runtime.listing._dirty
    held = dirty.held

    async def late(some: Any, *given: Any, **more: Any) -> Any:
        monkeypatch.setattr(dirty, "held", held)
        for name in some:
            await _forgotten(name, worker, redis_raw, keys)
        return await held(some, *given, **more)

    monkeypatch.setattr(dirty, "held", late)
    found = {state.key: state.value async for state in cache.list("runs/", order=order, limit=10)}
    assert found == {NAMES[0]: 1, NAMES[1]: 2, NAMES[3]: 1, "runs/5": 2}


async def test_a_gate_that_closes_in_between_hides_nothing(
    cache: AsyncStateCache, other: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Behind a closed gate Postgres alone is believed, as it is by then."""
    await other.set_many(dict.fromkeys(NAMES, 1))
    await flush(worker)

    async def meanwhile() -> None:
        await other.set("runs/5", 2)
        await _forgotten("runs/5", worker, redis_raw, keys)
        redis_raw.hset(keys.meta(keys.shard("runs/5")), "replid", "another server")

    _meanwhile(cache, meanwhile, monkeypatch)
    found = {state.key: state.value async for state in cache.list("runs/", limit=10)}
    assert found == dict.fromkeys(NAMES, 1) | {"runs/5": 2}


@pytest.fixture
def few(make_settings: MakeSettings) -> Settings:
    """Settings of a client with a single connection to Postgres."""
    return make_settings(postgres_connections_max=1)


@pytest.mark.counts_seconds
@pytest.mark.parametrize("kind", ["drop_request", "drop_reply", "hold_request"])
async def test_where_redis_fails_meanwhile_it_is_asked_again_and_the_connection_to_postgres_stays(
    kind: Any, few: Settings, proxy: FaultProxy, worker: Worker, psql: Any
) -> None:
    async with AsyncStateCache(settings=through(few, redis=proxy)) as client:
        await client.set_many(dict.fromkeys(NAMES, 1))
        await flush(worker)
        assert [state.key async for state in client.list("runs/")] == NAMES
        backends = "SELECT pid FROM pg_stat_activity WHERE application_name = 'statecache'"
        before = psql.execute(backends).fetchall()
        lost = proxy.arm(kind, at=b"ZRANGE")
        begun = monotonic()
        assert [state.key async for state in client.list("runs/")] == NAMES
        assert lost.struck
        assert monotonic() - begun < 5
        assert {*psql.execute(backends).fetchall()} >= {*before}
        lost.release()


async def test_what_changes_before_its_turn_among_the_newest_is_not_left_out(
    cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the first page lives any more, so a second one is asked for, and the state is newer by then."""
    for name in NAMES:
        await cache.set(name, 1)
    await flush(worker)
    await cache.delete_many(NAMES[2:])
    postgres, pages = cache._runtime.postgres, list[int]()
    fetch = postgres.fetch_each

    async def fetched(*given: Any, **more: Any) -> Any:
        pages.append(len(pages))
        if len(pages) == 2:
            await cache.set(NAMES[1], 2)
            await flush(worker)
        return await fetch(*given, **more)

    monkeypatch.setattr(postgres, "fetch_each", fetched)
    found = [(state.key, state.value) async for state in cache.list("runs/", order="newest", limit=2)]
    assert (found, pages) == ([(NAMES[1], 2), (NAMES[0], 1)], [0, 1])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("what", ["set", "delete", "flushed", "both"])
async def test_what_changes_before_its_value_is_read_is_given_as_it_is(
    what: str, order: Any, cache: AsyncStateCache, other: AsyncStateCache, worker: Worker, redis_raw: Any,
    keys: KeySpace, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in NAMES:
        await other.set(name, 1)
    dirty = cache._runtime.listing._dirty
    held = dirty.held

    async def late(names: Any, seconds: float, *, values: bool) -> Any:
        if values:
            monkeypatch.setattr(dirty, "held", held)
            if what == "delete":
                await other.delete(NAMES[1])
            elif what != "flushed":
                await other.set(NAMES[1], 2)
            if what in ("flushed", "both"):
                await _forgotten(NAMES[1], worker, redis_raw, keys)
        return await held(names, seconds, values=values)

    monkeypatch.setattr(dirty, "held", late)
    found = [(state.key, state.value) async for state in cache.list("runs/", order=order)]
    now = {"set": [(NAMES[1], 2)], "delete": [], "flushed": [(NAMES[1], 1)], "both": [(NAMES[1], 2)]}[what]
    expected = [(NAMES[0], 1), *now, (NAMES[2], 1), (NAMES[3], 1)]
    assert found == (expected if order in ("key", "oldest") else expected[::-1])
    assert dirty.held == held


@pytest.mark.counts_seconds
@pytest.mark.parametrize("order", ["key", "newest"])
async def test_who_waits_for_postgres_and_then_for_redis_waits_for_both_in_its_time(
    order: Any, few: Settings, proxy: FaultProxy
) -> None:
    """Each holds the single connection to Postgres for as long as it looks at Redis, which is silent."""
    async with AsyncStateCache(settings=through(few, redis=proxy)) as client:
        await client.set_many(dict.fromkeys(NAMES, 1))
        took = list[float]()

        async def listed() -> None:
            begun = monotonic()
            with pytest.raises(Unavailable):
                assert [state async for state in client.list("runs/", order=order, timeout=2.0)]
            took.append(monotonic() - begun)

        proxy.freeze()
        await asyncio.gather(*(listed() for _ in range(24)))
        proxy.thaw()
        assert max(took) < 3.0


@pytest.mark.parametrize(
    ("late", "told"),
    [
        (RedisUnavailable("timeout", detail="told to"), "refused"),
        (PostgresUnavailable("connect", detail="no answer within 0.198 s"), "refused"),
        (RedisUnavailable("connect", detail="told to"), "told to"),
    ],
    ids=["redis is late", "a new connection to it asks postgres", "redis is away"],
)
async def test_where_postgres_is_away_redis_is_told_of_only_where_it_is_away_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, late: Exception, told: str
) -> None:
    """An answer that is late on a busy machine says nothing of Redis, nor one that Postgres has no time for."""
    away = settings.model_copy(update={"postgres_url": "postgresql://127.0.0.1:1/nowhere", "timeout_s": 0.3})
    async with AsyncStateCache(settings=away) as cache:

        async def look(*_: Any, **__: Any) -> Any:
            raise late

        monkeypatch.setattr(cache._runtime.listing._dirty, "look", look)
        with pytest.raises(Unavailable, match=told):
            assert [one async for one in cache.list("runs/")] == []
