"""Misses: what Postgres holds comes back under a token, and no slow reader puts an older version over a newer one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, PostgresUnavailable, Settings, Unavailable
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache.lua import script
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, rows
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.misses import ABSENT, ASKS, KEY, LOOKS, as_coroutine, evict_clean, hold_at

pytestmark = pytest.mark.counts_seconds


Psql = psycopg.Connection[Any]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings whose hydration tokens do not stand for long."""
    return make_settings(hydrate_token_s=0.25)


@pytest.fixture
def slow(make_client: MakeClient, settings: Settings, postgres_proxy: FaultProxy) -> AsyncStateCache:
    """A client whose way to Postgres leads through the proxy."""
    return make_client(through(settings, postgres=postgres_proxy))


async def _evicted(cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, key: str = KEY) -> Any:
    """Return a state that Postgres holds and Redis does not."""
    written = await cache.set(key, 1)
    await flush(worker)
    evict_clean(redis_raw, keys, key)
    cache._runtime.near.drop()
    return written


@every_redis
async def test_a_slow_reader_does_not_put_an_old_version_over_a_newer_one(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace, psql: Psql,
) -> None:  # fmt: skip
    first = await cache.set(KEY, 1)
    await flush(worker)
    evict_clean(redis_raw, keys)
    fault, reading = await hold_at(postgres_proxy, ASKS, slow.get(KEY))
    second = await cache.set(KEY, 2)
    assert (second.version, second.parent_change_id) == (2, first.change_id)
    await flush(worker)
    evict_clean(redis_raw, keys)
    fault.release()
    assert await reading == first
    assert not redis_raw.exists(keys.state(KEY))
    assert (await cache.set(KEY, 3)).parent_change_id == second.change_id
    await flush(worker)
    assert rows(psql, "SELECT version FROM change ORDER BY version") == [(1,), (2,), (3,)]
    assert rows(psql, "SELECT * FROM conflict") == []


async def test_a_slow_reader_of_an_earlier_epoch_installs_nothing(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    first = await _evicted(cache, worker, redis_raw, keys)
    fault, reading = await hold_at(postgres_proxy, ASKS, slow.get(KEY))
    redis_raw.hincrby(keys.meta(keys.shard(KEY)), "epoch", 1)
    fault.release()
    assert await reading == first
    assert not redis_raw.exists(keys.state(KEY))


@pytest.mark.parametrize("there", [True, False])
async def test_a_slow_reader_installs_nothing_behind_a_gate_that_closed_meanwhile(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace, there: bool,
) -> None:  # fmt: skip
    """Whoever opens it may have looked already at what is stale: nobody would look at what comes now."""
    first = await _evicted(cache, worker, redis_raw, keys) if there else None
    fault, reading = await hold_at(postgres_proxy, ASKS if there else LOOKS, slow.get(KEY))
    _close_the_gate(redis_raw, keys)
    fault.release()
    assert await reading == first
    assert not redis_raw.exists(keys.state(KEY))


async def test_a_miss_behind_a_closed_gate_leaves_it_closed_and_installs_nothing(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    first = await client.set(f"{KEY}/first", 1)
    _close_the_gate(redis_raw, keys)
    assert await client.get(KEY) is None
    assert int(redis_raw.hget(keys.meta(keys.shard(KEY)), "epoch")) == first.epoch
    assert not redis_raw.exists(keys.state(KEY))


@pytest.mark.parametrize("there", [True, False])
async def test_a_gate_that_closes_before_the_token_is_taken_stays_closed_for_who_reads(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy, worker: Worker,
    redis_raw: Any, keys: KeySpace, there: bool,
) -> None:  # fmt: skip
    """Where Postgres holds nothing no token is taken, and what is absent is installed at that moment."""
    first = await _evicted(cache, worker, redis_raw, keys) if there else None
    client = make_client(through(settings, redis=proxy))
    taken = proxy.arm("hold_request", at=script("hydrate_begin" if there else "hydrate_absent").text[:40].encode())
    reading = asyncio.create_task(as_coroutine(client.get(KEY)))
    await taken.wait()
    _close_the_gate(redis_raw, keys)
    taken.release()
    assert await reading == first
    assert not redis_raw.exists(keys.state(KEY))
    assert redis_raw.hget(keys.meta(keys.shard(KEY)), "replid") == b""


async def test_a_write_that_misses_behind_a_closed_gate_opens_it_first(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    first = await client.set(f"{KEY}/first", 1)
    _close_the_gate(redis_raw, keys)
    assert (await client.update(KEY, lambda value: value + 1, default=0)).value == 1
    assert int(redis_raw.hget(keys.meta(keys.shard(KEY)), "epoch")) > first.epoch


def _close_the_gate(redis_raw: Any, keys: KeySpace) -> None:
    meta = keys.meta(keys.shard(KEY))
    redis_raw.hset(meta, mapping={"replid": "", "continues": redis_raw.hget(meta, "replid")})


async def test_a_slow_reader_leaves_alone_what_was_put_back_by_hand_meanwhile(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    """No commit did it, so the reader's token still stands."""
    await cache.set(KEY, 1)
    await flush(worker)
    held = redis_raw.dump(keys.state(KEY))
    evict_clean(redis_raw, keys)
    fault, reading = await hold_at(postgres_proxy, ASKS, slow.get(KEY))
    redis_raw.restore(keys.state(KEY), 0, held)
    redis_raw.hset(keys.state(KEY), "writer", "by hand")
    fault.release()
    await reading
    assert redis_raw.hget(keys.state(KEY), "writer") == b"by hand"
    assert redis_raw.pttl(keys.state(KEY)) == -1


async def test_a_commit_takes_the_token_of_a_slow_reader_away(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy,
    postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any, keys: KeySpace,
) -> None:  # fmt: skip
    """Its writer vouched that the key is new, so it took no token of its own in the reader's place."""
    slow = make_client(through(settings, redis=proxy, postgres=postgres_proxy))
    lost = proxy.arm("drop_request", at=ABSENT)
    fault, reading = await hold_at(postgres_proxy, ASKS, slow.get(KEY))
    assert lost.struck
    created = await cache.create(KEY, 1, assume_new=True)
    await flush(worker)
    evict_clean(redis_raw, keys)
    fault.release()
    assert await reading is None
    assert not redis_raw.exists(keys.state(KEY))
    assert await cache.get(KEY) == created


async def test_a_young_token_is_waited_for_and_postgres_is_asked_once(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy,
    postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any, keys: KeySpace,
) -> None:  # fmt: skip
    state = await _evicted(cache, worker, redis_raw, keys)
    patient = through(settings, redis=proxy, postgres=postgres_proxy).model_copy(update={"hydrate_token_s": 30.0})
    slow = make_client(patient)
    fault, first = await hold_at(postgres_proxy, ASKS, slow.get(KEY))
    others = [asyncio.create_task(as_coroutine(slow.get(KEY))) for _ in range(5)]
    while _times_read(proxy) < 6:  # so that each of them has missed it
        await asyncio.wait(others, timeout=0.02)
    fault.release()
    assert await asyncio.gather(first, *others) == [state] * 6
    assert bytes(postgres_proxy.requests).count(ASKS) == 1


def _times_read(proxy: FaultProxy) -> int:
    read = script("fenced_read")
    return sum(bytes(proxy.requests).count(one) for one in (read.sha.encode(), read.text[:40].encode()))


async def test_a_dead_readers_token_is_replaced_when_its_time_is_up(
    settings: Settings, postgres_proxy: FaultProxy, cache: AsyncStateCache, client: AsyncStateCache, worker: Worker,
    redis_raw: Any, keys: KeySpace,
) -> None:  # fmt: skip
    first = await _evicted(cache, worker, redis_raw, keys)
    async with AsyncStateCache(settings=through(settings, postgres=postgres_proxy)) as dying:
        assert await dying.get(f"{KEY}/b") is await client.get(f"{KEY}/c") is None  # so that all are connected
        fault = postgres_proxy.arm("hold_reply", at=ASKS)
        started = monotonic()
        reading = asyncio.create_task(dying.get(KEY))
        await fault.wait()
        assert (await client.set(KEY, 2)).version == 2
        assert monotonic() - started > 0.24, "the token stood for a quarter of a second"
        fault.release()
        assert await reading == first


async def test_what_was_brought_leaves_no_token_for_the_next_miss_to_wait_for(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    for _ in range(2):
        assert await client.get(KEY) is None
        assert redis_raw.hkeys(keys.hydrating(keys.shard(KEY))) == [b"_"]
        evict_clean(redis_raw, keys)


async def test_a_reader_that_fails_gives_its_token_back_and_no_other(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    hydrating = keys.hydrating(keys.shard(KEY))
    state, _ = [await _evicted(cache, worker, redis_raw, keys, key) for key in (KEY, f"{KEY}/b")]
    assert await slow.get(f"{KEY}/connected") is None
    failing = postgres_proxy.arm("hold_reply", at=ASKS)
    first = asyncio.create_task(as_coroutine(slow.get(KEY, timeout=2.0)))
    await failing.wait()
    held = postgres_proxy.arm("hold_reply", at=ASKS)
    second = asyncio.create_task(as_coroutine(slow.get(KEY)))
    await held.wait()
    with pytest.raises(PostgresUnavailable, match="timeout"):
        await first
    assert redis_raw.hexists(hydrating, KEY)
    held.release()
    assert await second == state
    assert redis_raw.exists(keys.state(KEY))
    failing = postgres_proxy.arm("hold_reply", at=ASKS)
    with pytest.raises(PostgresUnavailable, match="timeout"):
        await slow.get(f"{KEY}/b", timeout=1.0)
    assert failing.struck
    assert redis_raw.hkeys(hydrating) == [b"_"]


async def test_many_states_are_loaded_by_one_query(slow: AsyncStateCache, postgres_proxy: FaultProxy) -> None:
    async with slow.transaction(*(f"{KEY}/{number}" for number in range(50))) as tx:
        tx.set(f"{KEY}/7", 7)
    assert tx.states[f"{KEY}/7"].version == 1
    assert [bytes(postgres_proxy.requests).count(one) for one in (LOOKS, ASKS)] == [1, 0]


@every_redis
async def test_a_recreation_goes_on_from_the_tombstone_that_postgres_keeps(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    await client.set(KEY, 1)
    tombstone = await client.delete(KEY)
    assert tombstone is not None
    await flush(worker)
    evict_clean(redis_raw, keys)
    assert await client.get(KEY) is None
    assert redis_raw.hmget(keys.state(KEY), "op", "version") == [b"delete", b"2"]
    evict_clean(redis_raw, keys)
    assert await client.delete(KEY) is None
    evict_clean(redis_raw, keys)
    again = await client.create(KEY, 3)
    assert (again.version, again.parent_change_id) == (3, tombstone.change_id)
    await flush(worker)
    assert rows(psql, "SELECT version, op FROM change ORDER BY version") == [(1, "set"), (2, "delete"), (3, "set")]
    assert rows(psql, "SELECT * FROM conflict") == []


@every_redis
async def test_a_dirty_state_that_somebody_deleted_is_waited_for_not_replaced_by_an_older_one(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    await client.set(KEY, 1)
    await flush(worker)
    second = await client.set(KEY, 2)
    redis_raw.unlink(keys.state(KEY))
    for call in (client.get, partial(client.set, value=3)):
        with pytest.raises(Unavailable, match="not yet in Postgres") as caught:
            await call(KEY, timeout=1.0)
        assert caught.value.reason == "hydration"
    await client.set("runs/another", "goes on")
    await flush(worker)
    assert await client.get(KEY) == second
    assert (await client.set(KEY, 3)).version == 3
    await flush(worker)
    assert rows(psql, "SELECT * FROM conflict") == []


@every_redis
async def test_what_comes_back_is_what_was_there(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    written = await client.namespace("runs", encoding="msgpack").set("42", {"é": [1, None, "\0", 2**63]})
    before = redis_raw.hgetall(keys.state(KEY))
    await flush(worker)
    evict_clean(redis_raw, keys)
    assert await client.get(KEY) == written
    assert redis_raw.hgetall(keys.state(KEY)) == before
    assert 0 < redis_raw.pttl(keys.state(KEY)) <= 7 * 86_400_000


@every_redis
async def test_a_repeat_is_recognised_in_a_state_that_came_back_from_postgres(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    first = await client.set(KEY, 1)
    last = [await client.set(KEY, number) for number in (2, 3)][-1]
    await flush(worker)
    for entries_stay in (True, False):
        if not entries_stay:
            redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0, approximate=False)
        evict_clean(redis_raw, keys)
        assert await client.set(KEY, 3, change_id=last.change_id) == last
        assert await client.set(KEY, 1, change_id=first.change_id) == first
        redis_raw.zrem(keys.unflushed(keys.shard(KEY)), KEY)


async def test_a_change_id_of_another_key_is_no_repeat(client: AsyncStateCache) -> None:
    first = await client.set(KEY, 1)
    for number in range(7):
        await client.set(f"{KEY}/other", number)
    other = await client.set(f"{KEY}/other", "mine", change_id=first.change_id)
    assert (other.version, other.change_id) == (8, first.change_id)
    assert await client.set(f"{KEY}/other", "mine", change_id=first.change_id) == other
