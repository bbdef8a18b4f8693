"""Fencing: what a holder writes that has lost the lock is refused, by its own clock, in Redis, and in Postgres."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    LeaseLost,
    LockHeld,
    Operation,
    OutcomeUnknown,
    Settings,
    StaleToken,
    StateCacheError,
    Token,
    VersionConflict,
)
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, rows
from tests.fixtures.locks import KEY, LONG, NEVER, Place
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.counts_seconds

PLAN = "runs/42/plan"
Psql = psycopg.Connection[Any]


def _formats(redis_raw: Any, keys: KeySpace) -> list[list[bytes]]:
    """Return format, locks and tokens of each entry of the key's stream."""
    entries = [fields for _, fields in redis_raw.xrange(keys.changes(keys.shard(KEY)))]
    names = (b"format", b"lock1", b"token1", b"lock2", b"token2")
    return [[fields[name] for name in names if name in fields] for fields in entries]


@every_redis
async def test_only_what_is_written_by_a_lease_says_so(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, worker: Worker, psql: Psql
) -> None:
    async with client.lock(KEY) as lease:
        await lease.create(KEY, 1)
        await client.set(KEY, 2)
        await lease.set(PLAN, 1, actor="ada", reason="test")
        async with lease.transaction(KEY, PLAN) as tx:
            tx.set(KEY, 3)
        await lease.transact([KEY, PLAN], lambda tx: tx.delete(PLAN))
        assert (await lease.update(KEY, lambda value: value + 1)).value == 4
        assert (await lease.get(KEY)).value == 4  # type: ignore[union-attr]
        await lease.delete(KEY, durability="memory")
    token = [b"2", KEY.encode(), b"1-1"]
    assert _formats(redis_raw, keys) == [token, [b"1"], *[token] * 5]
    await flush(worker)
    assert rows(psql, "SELECT key, epoch, count FROM lock_token") == [(KEY, 1, 1)]
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
    assert rows(psql, "SELECT version FROM state WHERE key = 'runs/42'") == [(5,)]


def _writes(lease: Any) -> list[Callable[[], Any]]:
    async def transaction() -> None:
        async with lease.transaction(KEY) as tx:
            tx.set(KEY, "late")

    return [
        lambda: lease.set(KEY, "late"), lambda: lease.create(PLAN, "late"), lambda: lease.delete(KEY),
        lambda: lease.update(KEY, lambda value: "late"), transaction,
        lambda: lease.transact([KEY], lambda tx: tx.set(KEY, "late")),
    ]  # fmt: skip


@every_redis
async def test_a_lease_that_somebody_else_has_by_now_writes_nothing(
    client: AsyncStateCache, place: Place, redis_raw: Any, keys: KeySpace
) -> None:
    for at in range(6):
        async with client.lock(KEY) as lease:
            await client.set(KEY, "before")
            place.put(token="1-99", until=NEVER)
            with pytest.raises(StaleToken, match=r"lease 1-\d+ of 'runs/42', which elsewhere:1 holds now") as caught:
                await _writes(lease)[at]()
            assert (caught.value.key, caught.value.token) == (KEY, str(lease.token))
            assert caught.value.holder == "elsewhere:1"
            assert lease.lost
        assert (await client.get(KEY, read="primary")).value == "before"  # type: ignore[union-attr]
        redis_raw.hdel(place.leases, KEY)
    assert all(entry == [b"1"] for entry in _formats(redis_raw, keys))


@every_redis
@pytest.mark.parametrize("standing", ["nothing", "expired"])
async def test_a_lease_that_stands_no_more_writes_nothing(client: AsyncStateCache, place: Place, standing: str) -> None:
    with pytest.raises(StaleToken, match="which is over"):  # noqa: PT012
        async with client.lock(KEY) as lease:
            place.redis.hdel(place.leases, KEY)
            if standing == "expired":
                place.put(token=str(lease.token), until=1)
            await lease.set(KEY, "late")
    assert await client.get(KEY) is None


async def test_the_verbs_of_a_lease_are_its_own_where_somebody_observes_them_too(
    make_client: MakeClient, settings: Settings, place: Place
) -> None:
    told: list[str] = []

    class Observer:
        def ended(self, operation: Operation) -> None:
            told.append(operation.verb)

    strict = make_client(settings, observer=Observer()).namespace("runs", locking="enforced")
    with pytest.raises(StaleToken):  # noqa: PT012
        async with strict.lock("42") as lease:
            await lease.set("42", 1)
            place.put(token="1-99", until=NEVER)
            await lease.set("42", 2)
    assert told.count("set") == 2


@every_redis
async def test_who_comes_late_hears_first_that_the_state_has_changed(client: AsyncStateCache, place: Place) -> None:
    async with client.lock(KEY) as lease:
        before = await lease.set(KEY, 1)
        await client.set(KEY, 2)
        place.redis.hdel(place.leases, KEY)
        with pytest.raises(VersionConflict):
            await lease.set(KEY, 3, expected=before)
        with pytest.raises(StaleToken):
            await lease.set(KEY, 3)


@every_redis
async def test_a_repeat_of_what_was_applied_is_answered_though_the_lease_is_lost(
    client: AsyncStateCache, place: Place
) -> None:
    async with client.lock(KEY) as lease:
        first = await lease.set(KEY, 1, change_id="a" * 24)
        place.put(token="1-99", until=NEVER)
        assert await lease.set(KEY, 1, change_id="a" * 24) == first
        with pytest.raises(StaleToken):
            await lease.set(KEY, 2)
        assert lease.lost
        assert await lease.set(KEY, 1, change_id="a" * 24) == first
        with pytest.raises(StaleToken):
            await lease.set(KEY, 2, change_id="b" * 24)


async def test_a_commit_whose_reply_is_lost_with_the_lease_is_found(
    settings: Settings, proxy: FaultProxy, place: Place
) -> None:
    """It was applied while the lease stood; when it is asked for, somebody else holds the lock."""
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as behind, behind.lock(KEY) as lease:
        await lease.set(KEY, 1)
        fault = proxy.arm("hold_reply", at=b"the-mark")
        writing = asyncio.create_task(lease.set(KEY, "the-mark"))
        await fault.wait()
        place.put(token="1-99", until=NEVER)
        proxy.cut_all()
        assert (await writing).version == 2


async def _entered_writing(client: AsyncStateCache, value: Any) -> Token:
    async with client.lock(KEY) as lease:
        await lease.set(KEY, value)
        return lease.token


@every_redis
@pytest.mark.parametrize("flushed", ["together", "apart"])
async def test_what_is_forced_into_redis_by_an_older_token_is_set_aside_by_postgres(
    client: AsyncStateCache, cache: AsyncStateCache, place: Place, worker: Worker, psql: Psql, flushed: str
) -> None:
    """Redis takes the first of two holders for the holder again, whether or not the second's is in Postgres by then."""
    async with client.lock(KEY) as first:
        await first.set(KEY, "the first's")
        stolen = place.redis.hget(place.leases, KEY)
        place.redis.hdel(place.leases, KEY)
        second = await _entered_writing(cache, "the second's")
        assert second > first.token
        if flushed == "apart":
            await flush(worker)
        place.redis.hset(place.leases, KEY, stolen)
        late = await first.set(KEY, "late")
    await flush(worker)
    assert rows(psql, "SELECT change_id, cause FROM conflict") == [(late.change_id, "stale_token")]
    assert rows(psql, "SELECT epoch, count FROM lock_token") == [tuple(second)]
    assert (await cache.get(KEY, read="primary")).value == "the second's"  # type: ignore[union-attr]
    with pytest.raises(StateCacheError, match="set aside as a conflict"):
        await client.wait_durable(late, timeout=LONG)
    assert (await _entered_writing(cache, "the third's")) > second
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(1,)]


async def test_holders_of_several_locks_of_a_group_are_not_taken_for_stale(
    cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    """Two steps of a run are claimed by two agents, and both write the run; the first writes once more at the end."""
    async with cache.lock(KEY + "/steps/a") as one, cache.lock(KEY + "/steps/b") as other:
        assert one.token < other.token
        await one.set(KEY, 1)
        await other.set(KEY, 2)
        await one.set(KEY, 3)
    async with cache.lock(KEY) as run, run.lock(KEY + "/steps/a") as step:
        await step.set(KEY, 4)
        assert _formats(redis_raw, keys)[-1] == [
            b"2", KEY.encode(), str(run.token).encode(), KEY.encode() + b"/steps/a", str(step.token).encode(),
        ]  # fmt: skip
        await run.set(KEY, 5)
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
    assert rows(psql, "SELECT version FROM state WHERE key = 'runs/42'") == [(5,)]
    assert [key for (key,) in rows(psql, "SELECT key FROM lock_token ORDER BY key")] == [
        KEY, KEY + "/steps/a", KEY + "/steps/b",
    ]  # fmt: skip


async def test_a_lease_under_a_lease_is_no_better_than_the_one_above(cache: AsyncStateCache, place: Place) -> None:
    async with cache.lock(KEY) as run, run.lock(KEY + "/steps/a") as step:
        await step.set(KEY, 1)
        place.redis.hdel(place.leases, KEY)
        with pytest.raises(StaleToken) as caught:
            await step.set(KEY, 2)
        assert (caught.value.key, run.lost, step.lost) == (KEY, True, False)
        with pytest.raises(LeaseLost, match="'runs/42'"):
            await step.set(KEY, 3)


@every_redis
async def test_where_locking_is_enforced_nobody_writes_past_a_holder(
    client: AsyncStateCache, settings: Settings, make_client: MakeClient
) -> None:
    runs, others = client.namespace("runs", locking="enforced"), make_client(settings)
    strict = others.namespace("runs", locking="enforced")
    async with runs.lock("42/plan") as lease:
        await strict.set("42", "above the lock")
        for name in ("42/plan", "42/plan/step"):
            with pytest.raises(LockHeld, match=f"{settings.writer}.* holds the lock of 'runs/42/plan'") as caught:
                await strict.set(name, "past")
            assert (caught.value.key, caught.value.holder) == (PLAN, settings.writer)
            assert (await lease.set(name, "by the lease")).version == 1
        with pytest.raises(LockHeld):
            await strict.transact(["42", "42/plan"], lambda tx: tx.set("42/plan", 2))
        await strict.transact(["42", "42/plan"], lambda tx: tx.set("42", 2))
        with pytest.raises(LockHeld):
            await others.set(PLAN, "past")
    assert (await strict.set("42/plan", "free")).version == 2


async def test_where_locking_is_enforced_a_lease_of_another_lock_is_not_enough(
    cache: AsyncStateCache, place: Place
) -> None:
    runs = cache.namespace("runs", locking="enforced")
    place.put(token="1-99", until=NEVER)
    async with runs.lock("42/steps/a") as step:
        with pytest.raises(LockHeld, match="elsewhere:1 holds the lock of 'runs/42'"):
            await step.set("42", 1)
    place.put(token="1-99", until=1)
    async with runs.lock("42/steps/a") as step:
        assert (await step.set("42", 1)).version == 1


async def test_what_is_not_ours_at_the_leases_is_named_by_a_commit_too(cache: AsyncStateCache, place: Place) -> None:
    async with cache.lock(KEY) as lease:
        kept = place.redis.dump(place.leases)
        place.redis.delete(place.leases)
        place.redis.set(place.leases, "somebody's")
        for call in (lease.set(KEY, 1), cache.namespace("runs", locking="enforced").set("42", 1)):
            with pytest.raises(StateCacheError, match="does not hold what statecache wrote"):
                await call
        place.redis.restore(place.leases, 0, kept, replace=True)
        await lease.set(KEY, 1)


HOLDER = """
import sys
from statecache import StateCache, StateCacheError
from statecache.clock import boottime
with StateCache() as cache:
    lock = cache.lock("runs/42", ttl=1)
    lease = lock.__enter__()
    lease.set("runs/42", "the first's")
    print("holds", lease.token, flush=True)
    for line in sys.stdin:
        if line == "believe\\n":
            lease._holding.gone = False
            lease._holding.believed_until = boottime() + 60
            cache._runtime.leases._held[lease._holding.request] = lease._holding
        else:
            try:
                print("wrote", lease.set("runs/42", "late").change_id, flush=True)
            except StateCacheError as error:
                print(type(error).__name__, lease.lost, flush=True)
"""


class Holder:
    """A process that holds the lock and does as it is told."""

    def __init__(self, settings: Settings) -> None:
        names = ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards")
        given = {f"STATECACHE_{name.upper()}": str(getattr(settings, name)) for name in names}
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER], env=os.environ | given, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def says(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

    def told(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def signalled(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@every_redis
async def test_a_holder_that_is_stopped_past_its_ttl_is_refused_at_every_height(
    settings: Settings, cache: AsyncStateCache, place: Place, worker: Worker, psql: Psql
) -> None:
    """By its own clock; where it believes itself, by Redis; where Redis believes it, by Postgres."""
    holder = Holder(settings)
    try:
        said = await asyncio.to_thread(holder.says)
        stolen = place.redis.hget(place.leases, KEY)
        holder.signalled(signal.SIGSTOP)
        async with cache.lock(KEY, timeout=LONG) as lease:
            assert said == ["holds", "1-1"]
            second = await lease.set(KEY, "the second's")
            holder.signalled(signal.SIGCONT)
            holder.told("write")
            assert await asyncio.to_thread(holder.says) == ["LeaseLost", "True"]
            holder.told("believe")
            holder.told("write")
            assert await asyncio.to_thread(holder.says) == ["StaleToken", "True"]
            assert await cache.get(KEY, read="primary") == second
        place.redis.hset(place.leases, KEY, stolen.replace(b"until=", b"until=9"))
        holder.told("believe")
        holder.told("write")
        word, late = await asyncio.to_thread(holder.says)
        assert word == "wrote"
    finally:
        holder.signalled(signal.SIGCONT)
        await asyncio.to_thread(holder.end)
    await flush(worker)
    assert rows(psql, "SELECT change_id, cause FROM conflict") == [(late, "stale_token")]
    assert (await cache.get(KEY, read="primary")).value == "the second's"  # type: ignore[union-attr]


async def test_an_attempt_that_is_still_on_its_way_when_the_lease_is_lost_is_waited_for(
    settings: Settings, proxy: FaultProxy, place: Place
) -> None:
    """What is refused as stale is never applied afterwards, though Redis should come to believe the lease again."""
    hurried = through(settings, redis=proxy).model_copy(update={"timeout_s": 2.0, "hydrate_token_s": 1.0})
    async with AsyncStateCache(settings=hurried) as behind, behind.lock(KEY) as lease:
        await lease.set(KEY, 1)
        stolen = place.redis.hget(place.leases, KEY)
        fault = proxy.arm("hold_request", at=b"the-mark")
        writing = asyncio.create_task(lease.set(KEY, "the-mark"))
        await fault.wait()
        place.put(token="1-99", until=NEVER)
        with pytest.raises((StaleToken, OutcomeUnknown)):
            await writing
        place.redis.hset(place.leases, KEY, stolen)
        fault.release()
        await fault.answered()
        assert (await behind.get(KEY, read="primary")).value == 1  # type: ignore[union-attr]
