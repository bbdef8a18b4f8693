"""The write path, on every kind of Redis and with both clients: each commit is applied once, or not, and that is said.

The proxy loses requests and replies; `actor=` marks a commit, so that the fault meets its request and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    Backpressure,
    ChangeIdReused,
    OutcomeUnknown,
    RedisUnavailable,
    Settings,
    State,
    VersionConflict,
)
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.dirtiness import evict_all
from tests.support.fault_proxy import FaultProxy, Kind

pytestmark = pytest.mark.counts_seconds

KEY = "runs/42"
ACTOR = "the-unlucky"
MARK = ACTOR.encode()

Write = Callable[[AsyncStateCache, str, float | None], Awaitable[Any]]


async def _set(client: AsyncStateCache, key: str = KEY, timeout: float | None = None) -> Any:
    return await client.set(key, {"by": "set"}, actor=ACTOR, timeout=timeout)


async def _create(client: AsyncStateCache, key: str = KEY, timeout: float | None = None) -> Any:
    return await client.create(key, {"by": "create"}, actor=ACTOR, timeout=timeout)


async def _update(client: AsyncStateCache, key: str = KEY, timeout: float | None = None) -> Any:
    return await client.update(key, lambda value: value + 1, actor=ACTOR, timeout=timeout)


async def _delete(client: AsyncStateCache, key: str = KEY, timeout: float | None = None) -> Any:
    return await client.delete(key, actor=ACTOR, timeout=timeout)


async def _transaction(client: AsyncStateCache, key: str = KEY, timeout: float | None = None) -> Any:
    async with client.transaction(key, f"{key}/plan", actor=ACTOR, timeout=timeout) as tx:
        tx.set(key, {"by": "transaction"})
    return tx.states[key]


WRITES: tuple[Write, ...] = (_set, _create, _update, _delete, _transaction)


@pytest.fixture
def behind(make_client: MakeClient, settings: Settings, proxy: FaultProxy) -> AsyncStateCache:
    """A client whose way to Redis leads through the proxy."""
    return make_client(through(settings, redis=proxy))


Changes = Callable[..., list[dict[bytes, bytes]]]


@pytest.fixture
def changes(redis_raw: Any, keys: KeySpace) -> Changes:
    """The entries that hold a key, oldest first."""

    def of(key: str = KEY) -> list[dict[bytes, bytes]]:
        entries = [fields for _, fields in redis_raw.xrange(keys.changes(keys.shard(key)))]
        return [fields for fields in entries if fields[b"key1"].decode() == key]

    return of


async def _prepare(client: AsyncStateCache, write: Write, key: str) -> int:
    """Bring the key to where the write makes sense, and return the version that the write will make."""
    if write is _create:
        assert await client.get(key) is None
        return 1
    await client.set(key, 7)
    assert await client.get(f"{key}/plan") is None
    return 2


@every_redis
@pytest.mark.parametrize("kind", ["drop_reply", "drop_request", "reset"])
async def test_what_is_lost_on_the_way_is_applied_once(
    behind: AsyncStateCache, proxy: FaultProxy, changes: Changes, kind: Kind
) -> None:
    for number, write in enumerate(WRITES):
        key = f"runs/{number}"
        version = await _prepare(behind, write, key)
        before = bytes(proxy.requests).count(MARK)
        fault = proxy.arm(kind, at=MARK)
        written = await write(behind, key, None)
        assert fault.struck
        assert bytes(proxy.requests).count(MARK) == before + 2
        assert written.version == version
        found = changes(key)
        assert len(found) == version
        assert found[-1][b"change_id"].decode() == written.change_id


@every_redis
async def test_a_transaction_that_is_cut_off_before_its_exec_is_applied_once(
    behind: AsyncStateCache, proxy: FaultProxy, changes: Changes
) -> None:
    await behind.set(KEY, 7)
    fault = proxy.arm("cut", at=b"$4\r\nEXEC")
    written = await _transaction(behind)
    assert fault.struck
    assert written.version == 2
    assert len(changes()) == 2


@every_redis
async def test_single_bytes_make_the_same_conversation(
    behind: AsyncStateCache, proxy: FaultProxy, changes: Changes
) -> None:
    proxy.trickle = True
    await behind.set(KEY, {"text": "é\0🔑" * 10})
    assert (await _transaction(behind)).version == 2
    assert (await behind.get(KEY)).value == {"by": "transaction"}  # type: ignore[union-attr]
    assert len(changes()) == 2


@every_redis
@pytest.mark.parametrize("kind", ["drop_reply", "drop_request"])
async def test_an_outcome_that_cannot_be_found_out_is_unknown_and_repeating_it_is_safe(
    behind: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy, changes: Changes, kind: Kind
) -> None:
    for number, write in enumerate(WRITES):
        key = f"runs/{number}"
        version = await _prepare(behind, write, key)
        fault = proxy.arm(kind, at=MARK)
        fault.then(lambda: setattr(proxy, "refusing", True))
        with pytest.raises(OutcomeUnknown) as caught:
            await write(behind, key, 1.0)
        proxy.refusing = False
        assert fault.struck
        assert caught.value.keys == (key,)
        assert len(changes(key)) == version - (kind == "drop_request")
        repeating = cache.set(key, {"by": "somebody"}, change_id=caught.value.change_id)
        if kind == "drop_reply":  # it was applied, with another value
            with pytest.raises(ChangeIdReused) as reused:
                await repeating
            assert reused.value.version == version
        else:
            again = await repeating
            assert (again.version, again.change_id) == (version, caught.value.change_id)
        assert len(changes(key)) == version


async def test_what_was_never_sent_is_not_unknown(behind: AsyncStateCache, proxy: FaultProxy) -> None:
    proxy.refusing = True
    with pytest.raises(RedisUnavailable):
        await behind.set(KEY, 1, timeout=0.3)


async def _commit_more_than_is_remembered(client: AsyncStateCache) -> State[Any]:
    return [await client.set(KEY, f"other {number}") for number in range(7)][-1]


async def _forgotten(
    kind: Kind, behind: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy
) -> tuple[asyncio.Task[Any], State[Any]]:
    """Hold a write up until its state has forgotten it; return its task, and what others wrote last."""
    await behind.set(KEY, 7)
    fault = proxy.arm(kind, at=MARK)
    writing = asyncio.create_task(_as_coroutine(_set(behind)))
    await fault.wait()
    return writing, await _commit_more_than_is_remembered(cache)


@every_redis
async def test_a_repeat_that_the_state_no_longer_remembers_is_found_in_the_stream(
    behind: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy, changes: Changes
) -> None:
    writing, last = await _forgotten("hold_reply", behind, cache, proxy)
    proxy.cut_all()
    written = await writing
    assert (written.version, written.position.n) == (2, 2)
    assert await cache.get(KEY) == last
    assert len(changes()) == 9


@every_redis
async def test_a_repeat_that_redis_no_longer_remembers_is_found_in_postgres(
    behind: AsyncStateCache,
    cache: AsyncStateCache,
    proxy: FaultProxy,
    worker: Worker,
    redis_raw: Any,
    keys: KeySpace,
) -> None:
    writing, last = await _forgotten("hold_reply", behind, cache, proxy)
    await flush(worker)
    redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0, approximate=False)
    proxy.cut_all()
    written = await writing
    assert (written.version, written.position.n) == (2, 2)
    assert await cache.get(KEY) == last


@every_redis
async def test_a_repeat_that_was_never_applied_is_applied_although_the_state_could_not_tell(
    behind: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy, changes: Changes
) -> None:
    writing, last = await _forgotten("hold_request", behind, cache, proxy)
    proxy.cut_all()
    written = await writing
    assert (written.version, written.parent_change_id) == (9, last.change_id)
    assert len(changes()) == 9


@every_redis
async def test_a_blind_repeat_that_was_never_applied_goes_on_when_others_write_meanwhile(
    behind: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy, changes: Changes
) -> None:
    """It goes on with the state that it looked up as its parent: who is quicker than that is no conflict to it."""
    writing, last = await _forgotten("hold_request", behind, cache, proxy)
    with_parent = proxy.arm("hold_request", at=last.change_id.encode())
    proxy.cut_all()
    await with_parent.wait()
    quicker = await cache.set(KEY, "quicker")
    with_parent.release()
    written = await writing
    assert (written.version, written.parent_change_id) == (10, quicker.change_id)
    assert len(changes()) == 10


@every_redis
async def test_a_request_that_arrives_after_its_time_is_refused(
    behind: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy, changes: Changes
) -> None:
    """Its sender was told that the outcome is unknown, and the state has forgotten more than it could recognise."""
    await behind.set(KEY, 7)
    fault = proxy.arm("hold_request", at=MARK)
    fault.then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await _set(behind, timeout=1.0)
    again = await cache.set(KEY, "again", change_id=caught.value.change_id)
    assert again.version == 2
    await _commit_more_than_is_remembered(cache)
    fault.release()
    await fault.answered()
    assert len(changes()) == 9


async def _as_coroutine(write: Awaitable[Any]) -> Any:
    return await write


@every_redis
async def test_a_repeat_of_a_compared_write_is_known_not_to_be_applied(
    behind: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    before = await behind.set(KEY, 7)
    fault = proxy.arm("hold_request", at=MARK)
    writing = asyncio.create_task(_as_coroutine(behind.set(KEY, 8, expected=before, actor=ACTOR)))
    await fault.wait()
    last = await _commit_more_than_is_remembered(cache)
    proxy.cut_all()
    with pytest.raises(VersionConflict) as caught:
        await writing
    assert caught.value.actual == last.change_id


@every_redis
async def test_a_full_backlog_refuses_what_is_new_and_not_what_was_applied(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, worker: Worker, changes: Changes
) -> None:
    client = make_client(through(settings, redis=proxy).model_copy(update={"backlog_entries_max": 3}))
    for step in range(2):
        await client.set(KEY, step)
    fault = proxy.arm("drop_reply", at=MARK)
    assert (await _set(client)).version == 3
    assert fault.struck
    with pytest.raises(Backpressure, match="3 changes") as caught:
        await client.set(KEY, "one too many")
    assert caught.value.shard == client._runtime.keys.shard(KEY)
    assert len(changes()) == 3
    assert (await client.get(KEY)).version == 3  # type: ignore[union-attr]
    other = next(key for n in range(99) if client._runtime.keys.shard(key := f"runs/{n}") != caught.value.shard)
    await client.set(other, "another shard goes on")
    await flush(worker)
    assert (await client.set(KEY, "there is room again")).version == 4


@every_redis
async def test_a_repeat_of_a_state_that_was_evicted_is_answered_although_the_backlog_is_full(
    make_client: MakeClient, settings: Settings, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    client = make_client(settings.model_copy(update={"backlog_entries_max": 1}))
    written = await client.set(KEY, 1)
    await flush(worker)
    await client.set(f"{KEY}/other", 1)
    redis_raw.unlink(keys.state(KEY))
    assert await client.set(KEY, 1, change_id=written.change_id) == written
    with pytest.raises(Backpressure, match="1 changes"):
        await client.set(KEY, 2)


@every_redis
async def test_a_backlog_is_bounded_in_bytes_too(make_client: MakeClient, settings: Settings, changes: Changes) -> None:
    client = make_client(settings.model_copy(update={"backlog_bytes_max": 2000}))
    await client.set(KEY, "x" * 1000)
    await client.set(KEY, "x" * 1000)
    with pytest.raises(Backpressure, match="bytes are not yet flushed"):
        await client.set(KEY, "x")
    assert len(changes()) == 2


@every_redis
async def test_a_write_takes_the_time_to_live_from_a_clean_state(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    await client.set(KEY, 1)
    await flush(worker)
    redis_raw.unlink(keys.state(KEY))
    assert (await client.get(KEY)).version == 1  # type: ignore[union-attr]
    assert redis_raw.pttl(keys.state(KEY)) > 0
    await client.set(KEY, 2)
    assert redis_raw.pttl(keys.state(KEY)) == -1


@pytest.mark.own_servers("it makes the server forget its scripts")
@every_redis
async def test_the_scripts_may_be_forgotten_by_the_server(
    client: AsyncStateCache, redis_raw: Any, changes: Changes
) -> None:
    await client.set(KEY, 1)
    await _transaction(client)
    redis_raw.script_flush()
    assert (await client.set(KEY, 2)).version == 3
    await client.set(KEY, 3)
    redis_raw.script_flush()
    assert (await _transaction(client)).version == 5
    redis_raw.script_flush()
    assert await client.get("runs/nobody") is None
    assert len(changes()) == 5


@every_redis
async def test_numbers_stay_whole_however_large(client: AsyncStateCache, redis_raw: Any, keys: KeySpace) -> None:
    """A position of fifteen digits would become 1e+14 in Lua's hands, and a count beyond 2^53 another number."""
    meta = keys.meta(keys.shard(KEY))
    redis_raw.hset(meta, mapping={"n": 10**14 - 1, "entries": 10**14 - 1, "flushed_entries": 10**14 - 1})
    value = {"big": 2**53 + 1, "bigger": -(2**63), "empty": [], "text": "10", "float": 1e-7}
    state = await client.set(KEY, value)
    assert state.position is not None
    assert state.position.n == 10**14
    assert redis_raw.hmget(meta, "n", "entries") == [b"100000000000000"] * 2
    assert (await client.get(KEY)).value == value  # type: ignore[union-attr]
    assert (await client.get(KEY)).position == state.position  # type: ignore[union-attr]


@pytest.mark.own_servers("it changes settings of the server")
@every_redis
async def test_a_server_without_memory_refuses_and_nothing_is_applied(
    client: AsyncStateCache, redis_raw: Any, changes: Changes, psql: psycopg.Connection[Any]
) -> None:
    before = await client.set(KEY, 1)
    kept = redis_raw.config_get("maxmemory", "maxmemory-policy")
    redis_raw.config_set("maxmemory-policy", "volatile-lru")
    redis_raw.config_set("maxmemory", 1)
    try:
        evict_all(redis_raw)
        for write in (_set, _update, _delete, _transaction):
            with pytest.raises(Backpressure, match="memory"):
                await write(client, KEY, None)
        with pytest.raises(Backpressure, match="memory"):
            await client.set("runs/nobody", 1, timeout=5.0)
        assert await client.get(KEY) == before
        assert await client.get("runs/nobody") is None
    finally:
        for name, value in kept.items():
            redis_raw.config_set(name, value)
    assert len(changes()) == 1
    assert (await _set(client)).version == 2
