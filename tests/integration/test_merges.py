"""Counters and collections on servers: nobody conflicts, each call counts once, and what holds for commits holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
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
    OutcomeUnknown,
    Quarantined,
    Settings,
    StaleToken,
    StateCache,
    UnknownCommit,
)
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, flush, rows
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.local_reads import reads
from tests.support.repeat_places import PLACES, Elsewhere
from tests.support.workers import at_work

KEY = "runs/42"
LOG = "runs/42/log"
CHANGE = "c" * 24
ACTOR = "the-unlucky"
MARK = ACTOR.encode()
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
@pytest.mark.parametrize("kind", ["drop_reply", "drop_request", "reset"])
async def test_a_lost_answer_is_counted_once(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, kind: Any
) -> None:
    behind = make_client(through(settings, redis=proxy))
    await behind.increment(KEY, 10)
    await behind.append(LOG, "a")
    for number in range(3):
        fault = proxy.arm(kind, at=MARK)
        state = await behind.increment(KEY, actor=ACTOR)
        assert fault.struck
        assert (state.value, state.version) == (11 + number, 2 + number)
        fault = proxy.arm(kind, at=MARK)
        log = await behind.append(LOG, number, actor=ACTOR)
        assert fault.struck
        assert log.value == ["a", *range(number + 1)]
        assert await behind.get(LOG) == log


@every_redis
@pytest.mark.parametrize("gone", ["stream", "Postgres"])
async def test_a_lost_answer_that_the_state_no_longer_remembers_is_found_with_its_value(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy, worker: Worker,
    redis_raw: Any, keys: KeySpace, gone: str,
) -> None:  # fmt: skip
    """Others have counted meanwhile; what it gives is the value that it has made itself."""
    behind = make_client(through(settings, redis=proxy))
    await behind.increment(KEY, 10)
    fault = proxy.arm("hold_reply", at=MARK)
    counting = asyncio.create_task(behind.increment(KEY, 5, actor=ACTOR, ttl=3600))
    await fault.wait()
    for _ in range(8):
        last = await cache.increment(KEY)
    if gone == "Postgres":
        await flush(worker)
        redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0)
    proxy.cut_all()
    state = await counting
    assert (state.value, state.version) == (15, 2)
    assert state.expires_at is not None
    assert (last.value, last.version) == (23, 10)
    assert await cache.get(KEY) == last


@pytest.fixture(params=PLACES)
def move(
    request: pytest.FixtureRequest, client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> Callable[[], Awaitable[None]]:
    """What moves a change to one of the places where a repeat looks for it."""
    moved: Callable[[], Awaitable[None]] = getattr(Elsewhere(client, worker, redis_raw, keys), request.param)
    return moved


@every_redis
@pytest.mark.parametrize("before", ["nothing", "number", "deleted", "ended"])
async def test_a_named_repeat_answers_as_the_first_and_another_merge_is_refused(
    client: AsyncStateCache, move: Callable[[], Awaitable[None]], redis_raw: Any, keys: KeySpace, before: str
) -> None:
    if before != "nothing":
        await client.set(KEY, 7, ttl=3600 if before == "ended" else None)
    if before == "deleted":
        await client.delete(KEY)
    if before == "ended":
        await _end(redis_raw, keys)
    first = await client.increment(KEY, 5, change_id=CHANGE)
    assert first.value == (12 if before == "number" else 5)
    await move()
    found = await client.get(KEY)
    assert await client.increment(KEY, 5, change_id=CHANGE) == first
    for other in (
        client.increment(KEY, 6, change_id=CHANGE), client.append(KEY, 5, change_id=CHANGE),
        client.set(KEY, 6, change_id=CHANGE), client.delete(KEY, change_id=CHANGE),
    ):  # fmt: skip
        with pytest.raises(ChangeIdReused) as caught:
            await other
        assert (caught.value.key, caught.value.change_id) == (KEY, CHANGE)
        assert caught.value.version == first.version
    assert await client.get(KEY) == found


async def _end(redis_raw: Any, keys: KeySpace) -> None:
    """Let the state have ended a while ago, in its hash and in its entry."""
    stream = keys.changes(keys.shard(KEY))
    redis_raw.hset(keys.state(KEY), "encoding", "json until 1000")
    entry_id, fields = redis_raw.xrange(stream)[-1]
    n = int(entry_id.split(b"-")[1])
    redis_raw.delete(stream)
    redis_raw.xadd(stream, {**fields, b"encoding1": b"json until 1000"}, id=f"{entry_id.split(b'-')[0].decode()}-{n}")


async def test_a_change_id_of_another_verb_is_refused_wherever_it_stands(
    client: AsyncStateCache, move: Callable[[], Awaitable[None]]
) -> None:
    await client.set(KEY, 7, change_id=CHANGE)
    await move()
    with pytest.raises(ChangeIdReused):
        await client.increment(KEY, 6, change_id=CHANGE)
    with pytest.raises(ChangeIdReused):
        await client.append(KEY, 7, change_id=CHANGE)


async def test_a_named_repeat_of_the_newest_needs_no_postgres(
    make_client: MakeClient, settings: Settings, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    """Not even where what was there before has left Redis."""
    behind = make_client(through(settings, postgres=postgres_proxy))
    await behind.increment(KEY, 5)
    await flush(worker)
    redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0)
    postgres_proxy.refusing = True
    postgres_proxy.cut_all()
    state = await behind.increment(KEY, 2)
    again = make_client(through(settings, postgres=postgres_proxy))
    assert await again.increment(KEY, 2, change_id=state.change_id) == state
    with pytest.raises(ChangeIdReused):
        await again.increment(KEY, 3, change_id=state.change_id)


@every_redis
async def test_an_unknown_outcome_is_repeated_by_its_change_id(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    behind = make_client(through(settings, redis=proxy))
    await behind.increment(KEY)
    fault = proxy.arm("drop_reply", at=MARK)
    fault.then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await behind.increment(KEY, 5, actor=ACTOR, timeout=1.0)
    for _ in range(8):
        last = await cache.increment(KEY)
    proxy.refusing = False
    assert [one.change_id for one in _unknown(behind)] == [caught.value.change_id]
    again = await behind.increment(KEY, 5, change_id=caught.value.change_id)
    assert (again.value, again.version, again.change_id) == (6, 2, caught.value.change_id)
    assert _unknown(behind) == ()
    assert await cache.get(KEY) == last


def _unknown(client: AsyncStateCache) -> tuple[UnknownCommit, ...]:
    return client._runtime.unknown_outcomes.all()


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


async def test_copies_are_counted_of_a_merge(make_client: MakeClient, paired: Settings) -> None:
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
