"""Every verb ends when its time is up, or when it is cancelled, whatever has fallen silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.clock import monotonic
from statecache.errors import LockTimeout, StateCacheError, Unavailable
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeClient
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds

KEY = "runs/1"
TIMEOUT_S = 0.3
LONG_S = 30.0
LOADED_S = 1.0
"""What may pass beyond the timeout, where all verbs are called at once beside other tests; alone it is below 0.1 s."""
TIERS = pytest.mark.parametrize("tier", ["redis", "postgres"])
CONNECTED = pytest.mark.parametrize("connected", [True, False], ids=["connected", "new"])

Call = Callable[[AsyncStateCache, str, float], Awaitable[Any]]


async def _listed(client: AsyncStateCache, key: str, seconds: float) -> None:
    async for _ in client.list("runs/", timeout=seconds):
        pass


async def _in_transaction(client: AsyncStateCache, key: str, seconds: float) -> None:
    async with client.transaction(key, timeout=seconds) as tx:
        tx.set(key, 2)


async def _locked(client: AsyncStateCache, key: str, seconds: float) -> None:
    async with client.lock(key, timeout=seconds):
        pass


async def _durable(client: AsyncStateCache, key: str, seconds: float) -> None:
    state = await client.get(KEY, timeout=seconds)
    assert state is not None
    await client.wait_durable(state, timeout=seconds)


VERBS: dict[str, Call] = {
    "get local": lambda client, key, seconds: client.get(key, read="local", timeout=seconds),
    "get primary": lambda client, key, seconds: client.get(key, read="primary", timeout=seconds),
    "get fenced": lambda client, key, seconds: client.get(key, read="fenced", timeout=seconds),
    "get_many": lambda client, key, seconds: client.get_many([key, key + "/2"], timeout=seconds),
    "get_many local": lambda client, key, seconds: client.get_many([key], read="local", timeout=seconds),
    "get_many fenced": lambda client, key, seconds: client.get_many([key], read="fenced", timeout=seconds),
    "exists": lambda client, key, seconds: client.exists(key, timeout=seconds),
    "set": lambda client, key, seconds: client.set(key, 1, timeout=seconds),
    "set, postgres": lambda client, key, seconds: client.set(key, 2, durability="postgres", timeout=seconds),
    "set_many": lambda client, key, seconds: client.set_many({key: 1, key + "/2": 2}, timeout=seconds),
    "create": lambda client, key, seconds: client.create(key, 1, timeout=seconds),
    "update": lambda client, key, seconds: client.update(key, lambda value: value, default=0, timeout=seconds),
    "delete": lambda client, key, seconds: client.delete(key, timeout=seconds),
    "transaction": _in_transaction,
    "transact": lambda client, key, seconds: client.transact([key], lambda tx: tx.set(key, 3), timeout=seconds),
    "list": _listed,
    "warm": lambda client, key, seconds: client.warm([key], timeout=seconds),
    "wait_for": lambda client, key, seconds: client.wait_for(key, timeout=seconds),
    "wait_durable": _durable,
    "outcome": lambda client, key, seconds: client.outcome("a" * 24, key, timeout=seconds),
    "lock": _locked,
    "step": lambda client, key, seconds: client.step(key, "pay", lambda step: 1, timeout=seconds),
    "resolve_step": lambda client, key, seconds: client.resolve_step(key, "pay", not_done=True, timeout=seconds),
}
"""Each verb on a state of its own, which is not in Redis, so that it asks both servers."""


@pytest.fixture
def behind(settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy) -> Settings:
    """Settings that lead through proxies to both servers."""
    return through(settings, redis=proxy, postgres=postgres_proxy)


@TIERS
@CONNECTED
async def test_every_verb_ends_in_time_beside_a_server_that_is_frozen(
    make_client: MakeClient, behind: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy, tier: str, connected: bool
) -> None:
    clients = {verb: make_client(behind) for verb in VERBS}
    await _begin(clients, connected)
    (proxy if tier == "redis" else postgres_proxy).freeze()
    calls = [VERBS[verb](client, _key(verb), TIMEOUT_S) for verb, client in clients.items()]
    took = await asyncio.gather(*map(_seconds, calls))
    _judge(dict(zip(clients, took, strict=True)), TIMEOUT_S)


@TIERS
@CONNECTED
async def test_every_verb_ends_when_it_is_cancelled_beside_a_server_that_is_frozen(
    behind: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy, tier: str, connected: bool
) -> None:
    clients = {verb: AsyncStateCache(settings=behind) for verb in VERBS}
    await _begin(clients, connected)
    frozen = proxy if tier == "redis" else postgres_proxy
    frozen.freeze()

    async def cut_short(verb: str, client: AsyncStateCache) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await VERBS[verb](client, _key(verb), LONG_S)

    took = await asyncio.gather(*(_seconds(cut_short(verb, client)) for verb, client in clients.items()))
    frozen.thaw()
    await asyncio.gather(*(client.close() for client in clients.values()))
    _judge(dict(zip(clients, took, strict=True)), TIMEOUT_S)


async def _in_a_lock(client: AsyncStateCache, entered: asyncio.Event) -> None:
    async with client.lock("runs/lock", ttl=60):
        entered.set()
        await asyncio.Event().wait()


async def _in_a_block(client: AsyncStateCache, entered: asyncio.Event) -> None:
    async with client.transaction("runs/transaction") as tx:
        tx.set("runs/transaction", 1)
        entered.set()
        await asyncio.Event().wait()


async def _in_an_update(client: AsyncStateCache, entered: asyncio.Event) -> None:
    async def endless(value: int) -> int:
        entered.set()
        await asyncio.Event().wait()
        return value

    await client.update("runs/update", endless, default=0)


@pytest.mark.parametrize("block", [_in_a_lock, _in_a_block, _in_an_update])
async def test_a_block_that_is_cancelled_is_left_at_once_beside_a_redis_that_is_frozen(
    behind: Settings, proxy: FaultProxy, block: Callable[[AsyncStateCache, asyncio.Event], Coroutine[Any, Any, None]]
) -> None:
    async with AsyncStateCache(settings=behind) as client:
        entered = asyncio.Event()
        task = asyncio.create_task(block(client, entered))
        await entered.wait()
        proxy.freeze()
        started = monotonic()
        task.cancel()
        await asyncio.wait([task])
        took = monotonic() - started
        proxy.thaw()
    assert task.cancelled()
    _judge({block.__name__: took}, 0.0)


@pytest.mark.parametrize("frozen", [True, False])
async def test_a_lock_that_is_not_waited_for_is_answered_soon(
    make_client: MakeClient, behind: Settings, proxy: FaultProxy, frozen: bool
) -> None:
    client, other = make_client(behind), make_client(behind)
    async with other.lock(KEY):
        await client.get(KEY)
        if frozen:
            proxy.freeze()
        started = monotonic()
        with pytest.raises(Unavailable if frozen else LockTimeout):
            await client.lock(KEY, timeout=0).__aenter__()
        took = monotonic() - started
        proxy.thaw()
    _judge({"lock": took}, 0.5)


async def test_a_local_read_waits_for_its_answer_no_longer_than_it_was_given(
    make_client: MakeClient, behind: Settings, proxy: FaultProxy
) -> None:
    client = make_client(behind.model_copy(update={"near_window_s": 40.0}))
    await _begin({"get": client}, connected=True)
    proxy.freeze()
    started = monotonic()
    with pytest.raises(Unavailable):
        await client.get("runs/2", read="local", timeout=TIMEOUT_S)
    _judge({"get": monotonic() - started}, TIMEOUT_S)


@TIERS
@CONNECTED
async def test_a_client_goes_down_in_time_beside_a_server_that_is_frozen(
    make_client: MakeClient, behind: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy, tier: str, connected: bool
) -> None:
    """Holding a lock, and with its connection for local reads, where it has one, or with one that is being opened."""
    client = make_client(behind)
    await client.set(KEY, 1)
    locked = await client.lock(KEY, ttl=60).__aenter__()
    if connected:
        await _begin({"close": client}, connected)
    (proxy if tier == "redis" else postgres_proxy).freeze()
    with suppress(StateCacheError):
        await client.get("runs/2", read="local", timeout=0.05)
    started = monotonic()
    await client.close(drain=TIMEOUT_S)
    _judge({"close": monotonic() - started}, TIMEOUT_S)
    assert locked.key == KEY


def _key(verb: str) -> str:
    return f"runs/{[*VERBS].index(verb)}/of-its-own"


async def _begin(clients: dict[str, AsyncStateCache], connected: bool) -> None:
    """Have the clients be connected to both servers, or only some state be there."""
    one, *_ = clients.values()
    await one.set(KEY, 1)
    for client in clients.values():
        if connected:
            await client.get(KEY, read="fenced")
            async with asyncio.timeout(LONG_S):
                while not client.near.trusted:
                    await client.get(KEY, read="local")
                    await pause()


async def _seconds(call: Awaitable[Any]) -> float:
    started = monotonic()
    with suppress(StateCacheError, TimeoutError):
        await call
    return monotonic() - started


def _judge(took: dict[str, float], bound_s: float) -> None:
    """Print how long each took beyond the bound, in seconds, longest first; assert that none took too long."""
    beyond = {what: round(seconds - bound_s, 3) for what, seconds in sorted(took.items(), key=lambda one: -one[1])}
    print(f"seconds beyond {bound_s}: {beyond}")  # noqa: T201
    assert {what: seconds for what, seconds in beyond.items() if seconds > LOADED_S} == {}
