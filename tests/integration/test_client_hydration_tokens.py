"""Hydration tokens whose reader is hindered: lost and late exchanges, cancellation, a Redis that refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Backpressure, Settings
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, rows
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.support.fault_proxy import FaultProxy, Kind
from tests.support.misses import ABSENT, ASKS, BEGIN, INSTALL, KEY, LOOKS, as_coroutine, evict_clean, hold_at

pytestmark = pytest.mark.counts_seconds

PROVEN = b"w1-"
"""Bytes of a commit to a key of which Postgres, in epoch 1, held nothing."""
WAIT_S = 5.0
Psql = psycopg.Connection[Any]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings whose hydration tokens do not stand for long."""
    return make_settings(hydrate_token_s=0.25)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are given back for certain, and before who is cancelled ends, however slow the machine is."""
    monkeypatch.setattr("statecache.core.read.hydration._FORGET_S", 10.0)
    monkeypatch.setattr("statecache.core.read.hydration._END_S", 10.0)


@pytest.fixture
async def evicted(cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace) -> None:
    """A state that Postgres holds and Redis does not."""
    await cache.set(KEY, 1)
    await flush(worker)
    evict_clean(redis_raw, keys)
    cache._runtime.near.drop()


@pytest.mark.parametrize("at", [BEGIN, INSTALL])
@pytest.mark.parametrize("kind", ["drop_request", "drop_reply", "reset"])
@pytest.mark.parametrize("verb", ["get", "set"])
async def test_a_lost_exchange_of_a_hydration_is_made_again(
    cache: AsyncStateCache, make_client: MakeClient, settings: Settings, proxy: FaultProxy, worker: Worker,
    redis_raw: Any, keys: KeySpace, verb: str, kind: Kind, at: bytes,
) -> None:  # fmt: skip
    """Nobody waits for a token of it, which would stand for longer than the verb has time.

    Beside tokens there may be the mark of a commit that went along and was sent again.
    """
    lossy = make_client(through(settings, redis=proxy).model_copy(update={"hydrate_token_s": 30.0}))
    first = await cache.set(KEY, 1)
    await flush(worker)
    evict_clean(redis_raw, keys)
    fault = proxy.arm(kind, at=at)
    if verb == "get":
        assert await lossy.get(KEY, timeout=WAIT_S) == first
    else:
        assert (await lossy.set(KEY, 2, timeout=WAIT_S)).parent_change_id == first.change_id
    assert fault.struck
    assert [name for name in redis_raw.hkeys(keys.hydrating(keys.shard(KEY))) if name[:1] != b"!"] == [b"_"]


@pytest.mark.parametrize("kind", ["drop_request", "drop_reply", "reset"])
@pytest.mark.parametrize("verb", ["get", "set"])
async def test_where_nothing_is_to_be_loaded_a_lost_exchange_leaves_no_token_either(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, redis_raw: Any, keys: KeySpace, verb: str,
    kind: Kind,
) -> None:  # fmt: skip
    lossy = make_client(through(settings, redis=proxy).model_copy(update={"hydrate_token_s": 30.0}))
    fault = proxy.arm(kind, at=ABSENT if verb == "get" else PROVEN)
    if verb == "get":
        assert await lossy.get(KEY, timeout=WAIT_S) is None
    else:
        assert (await lossy.set(KEY, 2, timeout=WAIT_S)).version == 1
    assert fault.struck
    assert [name for name in redis_raw.hkeys(keys.hydrating(keys.shard(KEY))) if name[:1] != b"!"] == [b"_"]


@every_redis
async def test_an_install_of_an_absence_that_arrives_late_installs_nothing_old(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy, worker: Worker,
    redis_raw: Any, keys: KeySpace,
) -> None:  # fmt: skip
    """Its reader began again meanwhile, the key was written, flushed and evicted: the watermark has moved."""
    slow = make_client(through(settings, redis=proxy))
    late = proxy.arm("hold_request", at=ABSENT)
    assert await slow.get(KEY, timeout=2.0) is None
    assert late.struck
    created = await cache.create(KEY, 1)
    await flush(worker)
    evict_clean(redis_raw, keys)
    late.release()
    await late.answered()
    assert not redis_raw.exists(keys.state(KEY))
    assert (await cache.set(KEY, 2)).parent_change_id == created.change_id


@pytest.mark.parametrize("verb", ["get", "set"])
async def test_who_is_cancelled_while_an_absence_is_installed_keeps_nobody_waiting(
    held: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy, redis_raw: Any, keys: KeySpace, verb: str
) -> None:
    fault = proxy.arm("hold_request", at=ABSENT if verb == "get" else PROVEN)
    loading = asyncio.create_task(as_coroutine(held.get(KEY) if verb == "get" else held.set(KEY, 0)))
    await fault.wait()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert redis_raw.hkeys(keys.hydrating(keys.shard(KEY))) == [b"_"]
    assert (await cache.set(KEY, 1, timeout=WAIT_S)).version == 1
    fault.release()


@every_redis
async def test_a_begin_that_arrives_late_lets_its_reader_install_nothing_old(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy,
    postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql,
) -> None:  # fmt: skip
    """The reader began again meanwhile and read slowly, while its token ended and another was quicker."""
    slow = make_client(through(settings, redis=proxy, postgres=postgres_proxy))
    first = await cache.set(KEY, 1)
    await flush(worker)
    evict_clean(redis_raw, keys)
    late = proxy.arm("hold_request", at=BEGIN)
    reading_slowly = postgres_proxy.arm("hold_reply", at=ASKS)
    reading = asyncio.create_task(as_coroutine(slow.get(KEY, timeout=8.0)))
    await reading_slowly.wait()
    assert late.struck
    second = await cache.set(KEY, 2)
    await flush(worker)
    evict_clean(redis_raw, keys)
    late.release()
    await late.answered()
    assert redis_raw.hexists(keys.hydrating(keys.shard(KEY)), KEY)
    reading_slowly.release()
    assert await reading == first
    assert not redis_raw.exists(keys.state(KEY))
    assert (await cache.set(KEY, 3)).parent_change_id == second.change_id
    await flush(worker)
    assert rows(psql, "SELECT version FROM change ORDER BY version") == [(1,), (2,), (3,)]
    assert rows(psql, "SELECT * FROM conflict") == []


@pytest.fixture
async def held(settings: Settings, proxy: FaultProxy) -> AsyncIterator[AsyncStateCache]:
    """A client whose way to Redis leads through the proxy, and whose tokens would stand for half a minute."""
    patient = through(settings, redis=proxy).model_copy(update={"hydrate_token_s": 30.0})
    async with AsyncStateCache(settings=patient) as client:
        yield client


@pytest.mark.usefixtures("unhurried", "evicted")
@pytest.mark.parametrize(("kind", "at"), [("hold_reply", BEGIN), ("hold_request", INSTALL)])
@pytest.mark.parametrize("verb", ["get", "set"])
async def test_who_is_cancelled_while_loading_gives_its_token_back(
    held: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy, redis_raw: Any, keys: KeySpace, verb: str,
    kind: Kind, at: bytes,
) -> None:  # fmt: skip
    fault = proxy.arm(kind, at=at)
    loading = asyncio.create_task(as_coroutine(held.get(KEY) if verb == "get" else held.set(KEY, 0)))
    await fault.wait()
    assert redis_raw.hexists(keys.hydrating(keys.shard(KEY)), KEY)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert redis_raw.hkeys(keys.hydrating(keys.shard(KEY))) == [b"_"]
    assert (await cache.set(KEY, 1, timeout=WAIT_S)).version == 2
    fault.release()


@pytest.mark.usefixtures("evicted")
async def test_what_a_write_takes_of_exchanges_with_redis(
    held: AsyncStateCache, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script, and again once Postgres was asked: a new key is written by the script alone. Texts are known."""
    await held.set(f"{KEY}/first", 1)
    await held.update(KEY, lambda value: value + 1)
    sent = list[bytes]()
    monkeypatch.setattr(proxy, "note", sent.append)
    await held.set(f"{KEY}/new", 1)
    assert [one.count(b"EVALSHA") for one in sent] == [1, 1]


@pytest.mark.usefixtures("evicted")
@pytest.mark.own_servers("it has the server forget scripts")
async def test_an_install_that_is_refused_ahead_of_a_commit_is_made_again_by_itself(
    held: AsyncStateCache, proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    """The server has forgotten that script, and says so once: no token is left for others to wait for."""
    await held.set("runs/1", 1)
    begun = proxy.arm("hold_reply", at=BEGIN)
    writing = asyncio.create_task(held.set(KEY, 2))
    await begun.wait()
    redis_raw.script_flush()
    begun.release()
    assert (await writing).version == 2
    assert redis_raw.hkeys(keys.hydrating(keys.shard(KEY))) == [b"_"]


@pytest.mark.own_servers("it has the server forget scripts")
async def test_an_absence_whose_install_is_refused_ahead_of_a_commit_is_installed_by_itself(
    settings: Settings, make_client: MakeClient, postgres_proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    client = make_client(through(settings, postgres=postgres_proxy))
    await client.set("runs/1", 1)
    looking = postgres_proxy.arm("hold_reply", at=LOOKS)
    writing = asyncio.create_task(as_coroutine(client.set("runs/1/more", 1)))
    await looking.wait()
    redis_raw.script_flush()
    looking.release()
    assert (await writing).version == 1
    assert redis_raw.hkeys(keys.hydrating(keys.shard("runs/1/more"))) == [b"_"]


@pytest.mark.usefixtures("unhurried", "evicted")
async def test_a_reader_that_is_cancelled_again_and_again_ends_at_once_and_its_token_goes_all_the_same(
    held: AsyncStateCache, proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    """As by a scope that cancels whatever its tasks wait for; no task is left behind."""
    installing = proxy.arm("hold_request", at=INSTALL)
    reading = asyncio.create_task(held.get(KEY))
    await installing.wait()
    giving_back = proxy.arm("drop_reply", at=b"Takes hydration tokens back")
    while not reading.done():
        reading.cancel()
        await asyncio.wait([reading], timeout=0)
    with pytest.raises(asyncio.CancelledError):
        await reading
    left = [task for task in asyncio.all_tasks() if "_forget" in repr(task)]
    await giving_back.wait()
    assert redis_raw.hkeys(keys.hydrating(keys.shard(KEY))) == [b"_"]
    assert [await task for task in left] == [0]


@pytest.mark.usefixtures("evicted")
async def test_a_silent_redis_does_not_keep_a_reader_from_being_cancelled(
    held: AsyncStateCache, proxy: FaultProxy
) -> None:
    fault = proxy.arm("hold_reply", at=BEGIN)
    reading = asyncio.create_task(held.get(KEY))
    await fault.wait()
    proxy.freeze()
    started = monotonic()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert monotonic() - started < 2.0


@pytest.mark.own_servers("it changes settings of the server")
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("there", [True, False])
async def test_an_install_for_which_redis_has_no_memory_leaves_no_token(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker,
    redis_raw: Any, keys: KeySpace, there: bool,
) -> None:  # fmt: skip
    state = None
    if there:
        state = await cache.set(KEY, 1)
        await flush(worker)
        evict_clean(redis_raw, keys)
    patient = settings.model_copy(update={"hydrate_token_s": 30.0})
    slow = make_client(through(patient, postgres=postgres_proxy))
    fault, reading = await hold_at(postgres_proxy, ASKS if there else LOOKS, slow.get(KEY))
    kept = redis_raw.config_get("maxmemory", "maxmemory-policy")
    redis_raw.config_set("maxmemory-policy", "volatile-lru")
    redis_raw.config_set("maxmemory", 1)
    try:
        fault.release()
        assert await reading == state
        if not there:
            with pytest.raises(Backpressure):
                await cache.set(KEY, 1)
    finally:
        for name, value in kept.items():
            redis_raw.config_set(name, value)
    assert not redis_raw.exists(keys.state(KEY))
    assert redis_raw.hkeys(keys.hydrating(keys.shard(KEY))) == [b"_"]
