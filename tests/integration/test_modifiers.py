"""Counters and collections on servers: nobody conflicts, each call counts once, and what holds for commits holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    Backpressure,
    ChangeIdReused,
    CodecError,
    Increment,
    LockHeld,
    Operation,
    Quarantined,
    Settings,
    StaleToken,
    StateCache,
)
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, rows
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.support.local_reads import reads
from tests.support.workers import at_work

KEY = "runs/42"
LOG = "runs/42/log"
CHANGE = "c" * 24
Psql = psycopg.Connection[Any]


class Ended:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def ended(self, operation: Operation) -> None:
        self.operations.append(operation)


@every_redis
async def test_nobody_conflicts_and_each_call_is_one_attempt(make_client: MakeClient, settings: Settings) -> None:
    observer = Ended()
    clients = [make_client(settings, observer=observer) for _ in range(3)]
    await asyncio.gather(
        *(clients[n % 3].increment(KEY, n) for n in range(200)),
        *(clients[n % 3].append(LOG, n) for n in range(60)),
        *(clients[n % 3].add("runs/42/set", n % 7, n % 5) for n in range(60)),
    )
    number, log, members = [await clients[0].get(key) for key in (KEY, LOG, "runs/42/set")]
    assert number is not None
    assert log is not None
    assert members is not None
    assert (number.value, number.version) == (sum(range(200)), 200)
    assert sorted(log.value) == [*range(60)]
    assert (sorted(members.value), members.version) == ([*range(7)], 60)
    told = [one for one in observer.operations if one.verb in ("increment", "append", "add")]
    assert Counter(one.verb for one in told) == {"increment": 200, "append": 60, "add": 60}
    assert {(one.outcome, one.conflicts) for one in told} == {("ok", 0)}
    # the first ones find nothing in Redis; those that come later need one attempt each
    assert sum(one.attempts for one in told if not one.hydrations) == sum(not one.hydrations for one in told)


@every_redis
async def test_threads_and_tasks_count_together(sync_cache: StateCache, cache: AsyncStateCache) -> None:
    def count() -> None:
        for _ in range(40):
            sync_cache.increment(KEY)
            sync_cache.append(LOG, "thread")

    threads = [asyncio.to_thread(count) for _ in range(4)]
    tasks = [cache.increment(KEY, 2) for _ in range(60)]
    await asyncio.gather(*threads, *tasks, *(cache.append(LOG, "task") for _ in range(30)))
    number, log = await cache.get(KEY), sync_cache.get(LOG)
    assert number is not None
    assert log is not None
    assert number.value == 4 * 40 + 120
    assert Counter(log.value) == {"thread": 160, "task": 30}


@every_redis
async def test_an_evicted_state_is_loaded_and_counted_on(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    first = await client.increment(KEY, 5, change_id=CHANGE)
    await client.append(LOG, {"text": 'a ",] b'})
    await flush(worker)
    redis_raw.unlink(keys.state(KEY), keys.state(LOG))
    assert await client.increment(KEY, 5, change_id=CHANGE) == first
    redis_raw.unlink(keys.state(KEY))
    with pytest.raises(ChangeIdReused):
        await client.increment(KEY, 4, change_id=CHANGE)
    redis_raw.unlink(keys.state(KEY))
    second = await client.increment(KEY, 2)
    assert (second.value, second.version) == (7, 2)
    assert (await client.append(LOG, 1)).value == [{"text": 'a ",] b'}, 1]


@every_redis
async def test_at_postgres_the_whole_new_value_is_durable_when_it_returns(
    make_client: MakeClient, settings: Settings, psql: Psql
) -> None:
    client = make_client(settings)
    async with at_work(settings):
        states = await asyncio.gather(*(client.increment(KEY, durability="postgres") for _ in range(20)))
        await client.add(LOG, "b", "a", durability="postgres", reason="tags")
        assert sorted(state.value for state in states) == [*range(1, 21)]
        assert rows(psql, "SELECT value, version FROM state WHERE key = %s", KEY) == [(b"20", 20)]
        found = rows(psql, "SELECT op, value, schema, reason FROM change WHERE key = %s", LOG)
        assert found == [("set", b'["b","a"]', "", "tags")]
        values = rows(psql, "SELECT value FROM change WHERE key = %s ORDER BY version", KEY)
        assert values == [(b"%d" % number,) for number in range(1, 21)]


async def test_those_who_follow_changes_get_the_values(cache: AsyncStateCache, settings: Settings) -> None:
    async with at_work(settings):
        for _ in range(3):
            await cache.increment(KEY, 2)
        await cache.append(LOG, "a", durability="postgres")
        found = [(change.key, change.op, change.value) async for change in cache.changes("runs/", follow=False)]
        assert found == [(KEY, "set", 2), (KEY, "set", 4), (KEY, "set", 6), (LOG, "set", ["a"])]


async def test_readers_who_keep_the_state_see_each_change(one: AsyncStateCache, other: AsyncStateCache) -> None:
    key = "runs/1"
    await one.increment(key)
    await reads(one, 1)
    await reads(other, 1)
    mine = await one.increment(key)
    assert await one.get(key) == mine
    await reads(other, 2)
    waiting = asyncio.create_task(_next(other, mine))
    theirs = await one.append("runs/1/log", 1)
    assert await one.get("runs/1/log") == theirs
    later = await one.increment(key)
    assert await waiting == later


async def _next(client: AsyncStateCache, after: Any) -> Any:
    return await client.wait_for("runs/1", after=after, timeout=20.0)


@every_redis
async def test_locks_stand_in_the_way_and_a_lease_counts(make_client: MakeClient, settings: Settings) -> None:
    client = make_client(settings).namespace("runs", type=int, locking="enforced")
    other = make_client(settings).namespace("runs", type=int)
    async with client.lock("42") as lease:
        assert (await lease.increment("42", 3)).value == 3
        with pytest.raises(LockHeld):
            await other.increment("42")
        with pytest.raises(LockHeld):
            await other.commit([Increment("42/n")])
    assert (await other.increment("42")).value == 4
    with pytest.raises(StaleToken):
        await lease.increment("42", change_id=CHANGE)
    assert (await other.get("42")).value == 4  # type: ignore[union-attr]


async def test_the_backlog_is_limited(make_client: MakeClient, make_settings: MakeSettings) -> None:
    client = make_client(make_settings(backlog_entries_max=3, shards=1))
    for _ in range(3):
        await client.increment(KEY)
    with pytest.raises(Backpressure):
        await client.increment(KEY)
    with pytest.raises(Backpressure):
        await client.append(LOG, 1)
    assert (await client.get(KEY)).value == 3  # type: ignore[union-attr]


async def test_what_is_in_quarantine_is_not_counted_on(
    client: AsyncStateCache, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    """Nobody knows what it would be."""
    await client.increment(KEY, 5)
    await flush(worker)
    agents.commit({"key": KEY, "value": "1", "schema": "no\0text", "new": "0"}, change_id=CHANGE)
    await flush(worker)
    redis_raw.unlink(keys.state(KEY))
    with pytest.raises(Quarantined) as caught:
        await client.increment(KEY)
    assert (caught.value.key, caught.value.change_id) == (KEY, CHANGE)


@every_redis
async def test_a_damaged_state_is_refused_and_left_alone(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    await client.append(KEY, "a")
    for damaged in (b"[1 ]", b"[", b"", b'["a",]', b"\xff\x00"):
        redis_raw.hset(keys.state(KEY), "value", damaged)
        with pytest.raises(CodecError, match="array"):
            await client.append(KEY, "b")
        with pytest.raises(CodecError, match="whole"):
            await client.increment(KEY)
        assert redis_raw.hget(keys.state(KEY), "value") == damaged
    assert redis_raw.xlen(keys.changes(keys.shard(KEY))) == 1


@every_redis
async def test_two_callers_of_one_change_id_count_once(make_client: MakeClient, settings: Settings) -> None:
    clients = [make_client(settings) for _ in range(3)]
    await clients[0].increment(KEY, 10)
    states = await asyncio.gather(*(one.increment(KEY, 5, change_id=CHANGE) for one in clients * 3))
    assert {(state.value, state.version) for state in states} == {(15, 2)}


class Job(msgspec.Struct, frozen=True):
    name: str


async def test_copies_are_counted_of_a_modifier(make_client: MakeClient, paired: Settings) -> None:
    client = make_client(paired)
    jobs = client.namespace("jobs", type=list[Job])
    assert (await jobs.append("1", Job("a"), durability="replica")).value == [Job("a")]
    again = await client.increment(KEY, 3, change_id=CHANGE, durability="replica")
    for _ in range(8):
        await client.increment(KEY)
    assert await client.increment(KEY, 3, change_id=CHANGE, durability="replica") == again


async def test_both_clients_add_and_remove(client: AsyncStateCache) -> None:
    assert (await client.add("runs/tags", "a", "b", "a")).value == ["a", "b"]
    assert (await client.remove("runs/tags", "a")).value == ["b"]
    assert (await client.append("runs/tags", "b")).value == ["b", "b"]
    assert (await client.remove("runs/tags", "b", "nobody")).value == []
    state = await client.get("runs/tags", read="primary")
    assert state is not None
    assert (state.value, state.version) == ([], 4)
