"""Outages: servers that are away, fall silent, go and come back; every wait has an end, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from statecache import (
    AsyncStateCache,
    OutcomeUnknown,
    PostgresUnavailable,
    RedisUnavailable,
    Settings,
    Unavailable,
)
from statecache.clock import monotonic
from statecache.concurrency import Concurrency, Tasks, Threads
from statecache.keys import KeySpace
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeClient
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds

WAIT_S = 20.0
GRACE_S = 1.5
"""What a call may take beyond its timeout on a machine that has other things to do."""


@pytest.fixture
def behind(make_client: MakeClient, settings: Settings, proxy: FaultProxy) -> AsyncStateCache:
    """A client whose way to Redis leads through the proxy."""
    return make_client(through(settings, redis=proxy))


def _nowhere(settings: Settings, **urls: str) -> Settings:
    return settings.model_copy(update=urls)


async def test_redis_is_down(make_client: MakeClient, settings: Settings) -> None:
    client = make_client(_nowhere(settings, redis_url="redis://:hush@127.0.0.1:1/0"))
    for call in (client.get("runs/first", timeout=0.2), client.set("runs/first", 1, timeout=0.2)):
        started = monotonic()
        with pytest.raises(RedisUnavailable, match=r"redis://:\*\*\*@127.0.0.1:1/0.*Is the server up") as caught:
            await call
        assert caught.value.reason == "connect"
        assert monotonic() - started < 0.2 + GRACE_S


async def test_what_was_in_the_way_is_told_although_the_last_pause_took_all_the_time_that_was_left(
    make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = [0.0]

    async def overslept(_: Concurrency, seconds: float) -> None:
        ahead[0] += 60

    for kind in (Tasks, Threads):
        monkeypatch.setattr(kind, "sleep", overslept)
    monkeypatch.setattr("statecache.core.commit.committer.monotonic", lambda: monotonic() + ahead[0])
    monkeypatch.setattr("statecache.backoff.monotonic", lambda: monotonic() + ahead[0])
    client = make_client(_nowhere(settings, redis_url="redis://127.0.0.1:1/0"))
    with pytest.raises(RedisUnavailable, match="Is the server up") as caught:
        await client.set("runs/first", 1, timeout=30)
    assert caught.value.reason == "connect"
    assert ahead == [60]


async def test_postgres_is_down_and_what_is_in_redis_goes_on(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache
) -> None:
    await cache.set("runs/first", 1)
    client = make_client(_nowhere(settings, postgres_url="postgresql://x:hush@127.0.0.1:1/x"))
    assert (await client.set("runs/first", 2)).version == 2
    assert (await client.create("runs/new", 1, assume_new=True)).version == 1
    for call in (client.get("runs/second", timeout=1.0), client.set("runs/second", 1, timeout=1.0)):
        started = monotonic()
        with pytest.raises(PostgresUnavailable, match=r"postgresql://x:\*\*\*@127.0.0.1:1/x.*Is the server up"):
            await call
        assert monotonic() - started < 1.0 + GRACE_S


@pytest.mark.parametrize("tier", ["redis", "postgres"])
async def test_a_server_that_accepts_and_never_answers_costs_no_more_than_the_timeout(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy, tier: str
) -> None:
    client = make_client(through(settings, redis=proxy, postgres=postgres_proxy))
    (proxy if tier == "redis" else postgres_proxy).silent = True
    started = monotonic()
    with pytest.raises(Unavailable):
        await client.set("runs/first", 1, timeout=0.2)
    assert monotonic() - started < 0.2 + GRACE_S


async def test_a_server_that_falls_silent_costs_no_more_than_the_timeout(
    behind: AsyncStateCache, proxy: FaultProxy
) -> None:
    await behind.set("runs/first", 1)
    held = proxy.arm("hold_reply", at=b"runs/first")
    held.then(proxy.freeze)
    started = monotonic()
    with pytest.raises(OutcomeUnknown):
        await behind.set("runs/first", 2, timeout=1.0)
    assert held.struck
    assert monotonic() - started < 1.0 + GRACE_S


@pytest.mark.parametrize("at", [b"Gives those of the asked keys that have a state", b"begin_epoch("])
async def test_a_postgres_that_falls_silent_costs_no_more_than_the_timeout(
    make_client: MakeClient, settings: Settings, postgres_proxy: FaultProxy, redis_raw: Any, keys: KeySpace, at: bytes
) -> None:
    """Reading a state that is not in Redis, or opening a gate: neither a task nor a thread waits on."""
    client = make_client(through(settings, postgres=postgres_proxy))
    await client.set("runs/first", 1)
    if at == b"begin_epoch(":
        meta = keys.meta(keys.shard("runs/first"))
        redis_raw.hset(meta, mapping={"replid": "", "continues": redis_raw.hget(meta, "replid")})
    fault = postgres_proxy.arm("hold_reply", at=at)
    started = monotonic()
    with pytest.raises(Unavailable) as caught:
        await client.set("runs/first" if at == b"begin_epoch(" else "runs/first/b", 2, timeout=1.0)
    assert fault.struck
    assert caught.value.reason in ("timeout", "epoch")
    assert monotonic() - started < 1.0 + GRACE_S
    fault.release()


async def test_a_client_that_is_cancelled_while_it_connects_leaves_nothing_open(
    settings: Settings, proxy: FaultProxy
) -> None:
    proxy.silent = True
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as cache:
        reading = asyncio.create_task(cache.get("runs/first"))
        async with asyncio.timeout(WAIT_S):
            while not proxy.requests:
                await pause()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


@pytest.fixture(scope="module")
def mortal() -> Iterator[Servers]:
    """Servers that may be killed."""
    with servers(workers=0, fsync=False, settings={"shards": "4"}) as started:
        yield started


@pytest.fixture
def survivor(make_client: MakeClient, mortal: Servers, request: pytest.FixtureRequest) -> AsyncStateCache:
    """A patient client of the servers that may be killed, all of which run."""
    for name in ("redis", "postgres"):
        if mortal.pid(name) is None:
            mortal.restart(name)
    return make_client(Settings(redis_url=mortal.redis_url, postgres_url=mortal.postgres_url, shards=4, timeout_s=30.0))


def _own(request: pytest.FixtureRequest) -> str:
    return f"runs/{request.node.name.translate({91: '-', 93: None})}"


async def test_writers_go_on_when_redis_is_killed_and_comes_back(
    survivor: AsyncStateCache, mortal: Servers, request: pytest.FixtureRequest
) -> None:
    key = _own(request)
    first = await survivor.set(key, 0)
    writing, back = asyncio.Event(), asyncio.Event()

    async def write() -> int:
        written = 0
        while written < 200 or not back.is_set():
            await survivor.update(key, lambda value: value + 1)
            written += 1
            writing.set()
        return written

    task = asyncio.create_task(write())
    await asyncio.wait_for(writing.wait(), 10)
    await asyncio.to_thread(mortal.kill, "redis")
    await asyncio.to_thread(mortal.restart, "redis")
    back.set()
    written = await task
    state = await survivor.get(key)
    assert state is not None
    assert (state.value, state.version - first.version) == (written, written)
    assert state.epoch > first.epoch


async def test_a_client_goes_on_when_postgres_is_killed_and_comes_back(
    survivor: AsyncStateCache, mortal: Servers, request: pytest.FixtureRequest
) -> None:
    key = _own(request)
    await survivor.set(key, 0)
    await asyncio.to_thread(mortal.kill, "postgres")
    assert (await survivor.set(key, 1)).value == 1
    with pytest.raises(PostgresUnavailable):
        await survivor.get(f"{key}/unheard", timeout=1.0)
    asking = asyncio.create_task(_get(survivor, f"{key}/unheard"))
    await asyncio.to_thread(mortal.restart, "postgres")
    assert await asking is None


async def _get(client: AsyncStateCache, key: str) -> Any:
    return await client.get(key)


async def test_a_closed_gate_waits_for_postgres_and_only_who_accepts_stale_states_reads_on(
    survivor: AsyncStateCache, make_client: MakeClient, mortal: Servers, request: pytest.FixtureRequest
) -> None:
    key = _own(request)
    before = await survivor.set(key, 1)
    await asyncio.to_thread(mortal.kill, "postgres")
    await asyncio.to_thread(mortal.restart, "redis")
    for asking in (survivor.get(key, timeout=1.0), survivor.set(key, 2, timeout=1.0)):
        started = monotonic()
        with pytest.raises(Unavailable) as caught:
            await asking
        assert caught.value.reason == "epoch"
        assert monotonic() - started < 1.0 + GRACE_S
    content = make_client(survivor.settings.model_copy(update={"stale_reads": True}))
    assert await content.get(key) == before
    with pytest.raises(Unavailable) as caught:
        await content.get(f"{key}/unheard", timeout=1.0)
    assert caught.value.reason == "epoch"
    writing = asyncio.create_task(_set(survivor, key, 2))
    await asyncio.to_thread(mortal.restart, "postgres")
    after = await writing
    assert (after.version, after.parent_change_id) == (before.version + 1, before.change_id)
    assert after.epoch > before.epoch


async def _set(client: AsyncStateCache, key: str, value: Any) -> Any:
    return await client.set(key, value)


async def test_a_reservation_of_somebody_else_costs_no_more_than_the_timeout(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    await client.set("runs/first", 1)
    meta = keys.meta(keys.shard("runs/first"))
    replid = redis_raw.hget(meta, "replid")
    reservation = {"replid": "", "reservation": "somebody", "continues": replid, "reserved_until": 2**52}
    redis_raw.hset(meta, mapping=reservation)
    started = monotonic()
    with pytest.raises(Unavailable, match="another process is opening it"):
        await client.set("runs/first", 2, timeout=1.0)
    assert monotonic() - started < 1.0 + GRACE_S
    redis_raw.hset(meta, "reserved_until", 0)
    assert (await client.set("runs/first", 2)).version == 2
