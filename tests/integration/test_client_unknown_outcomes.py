"""A commit that its caller never heard of again can be had, and asked about, until it is certain what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    Backpressure,
    Outcome,
    OutcomeUnknown,
    Settings,
    StateCache,
    UsageError,
    VersionConflict,
)
from statecache.commit_protocol import unknown_outcomes
from statecache.core.redis.connection import Link
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, flush, rows
from tests.fixtures.servers import MakeClient
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds

KEY = "runs/42"
WRITTEN = b"a value that is written"

Psql = psycopg.Connection[Any]


@pytest.fixture
async def behind(make_client: MakeClient, settings: Settings, proxy: FaultProxy) -> AsyncStateCache:
    """A client whose way to Redis leads through the proxy, on a connection that is there already."""
    client = make_client(through(settings, redis=proxy).model_copy(update={"redis_connections_max": 1}))
    await client.get(KEY)
    return client


async def _as_coroutine(call: Any) -> Any:
    return await call


async def _cancelled(call: Any, fault: Fault) -> None:
    """Cancel the call once its request has met the fault."""
    task = asyncio.create_task(_as_coroutine(call))
    await fault.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError, match=None) as caught:
        await task
    assert any("is not known: the call was ended" in note for note in caught.value.__notes__)


async def _only_one(client: Any) -> Any:
    """Return the one commit whose outcome is unknown."""
    held = client.unknown_outcomes()
    (one,) = await held if asyncio.iscoroutine(held) else held
    return one


async def _none_left(client: Any) -> bool:
    held = client.unknown_outcomes()
    return not (await held if asyncio.iscoroutine(held) else held)


# Out of time, both clients.


async def test_a_commit_that_ran_out_of_time_is_asked_about(
    behind: AsyncStateCache, proxy: FaultProxy, worker: Worker
) -> None:
    assert await _none_left(behind)
    proxy.arm("drop_reply", at=WRITTEN).then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await behind.set(KEY, WRITTEN.decode(), timeout=1.0)
    lost = await _only_one(behind)
    assert (lost.change_id, lost.keys, lost.since.tzinfo is not None) == (caught.value.change_id, (KEY,), True)
    away = await behind.outcome(lost.change_id, KEY, timeout=0.2)
    assert (away.verdict, away.settled, "Redis is unavailable" in away.reason) == ("unknown", False, True)
    proxy.refusing = False
    found = await behind.outcome(lost.change_id, KEY)
    state = await behind.get(KEY)
    assert state is not None
    assert found == Outcome(
        change_id=lost.change_id, key=KEY, verdict="applied", version=state.version, position=state.position
    )
    assert state.change_id == lost.change_id
    assert await _none_left(behind)
    await flush(worker)
    assert (await behind.outcome(lost.change_id, KEY)).durable


async def test_what_is_nowhere_is_not_applied_once_no_attempt_can_arrive(
    behind: AsyncStateCache, proxy: FaultProxy, cache: AsyncStateCache
) -> None:
    """The attempt is still on its way when it is asked about, and arrives when it has been said that it never will."""
    fault = proxy.arm("hold_request", at=WRITTEN)
    fault.then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await behind.set(KEY, WRITTEN.decode(), timeout=1.0)
    proxy.refusing = False
    change_id = caught.value.change_id
    stranger = await cache.outcome(change_id, KEY)
    assert (stranger.verdict, "only the client that sent it" in stranger.reason) == ("unknown", True)
    found = await behind.outcome(change_id, KEY)
    assert (found.verdict, found.settled, found.version) == ("not applied", True, None)
    fault.release()
    await fault.answered()
    assert await cache.get(KEY) is None
    assert await _none_left(behind)


async def test_asking_needs_a_key_that_the_change_wrote(behind: AsyncStateCache, proxy: FaultProxy) -> None:
    proxy.arm("drop_reply", at=WRITTEN).then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await behind.set(KEY, WRITTEN.decode(), timeout=0.3)
    with pytest.raises(UsageError, match=f"wrote '{KEY}' and not 'runs/43'"):
        await behind.outcome(caught.value.change_id, "runs/43")
    with pytest.raises(UsageError, match="is not a change_id"):
        await behind.outcome("no such thing", KEY)


async def test_a_namespace_asks_by_its_own_names(client: AsyncStateCache, settings: Settings) -> None:
    state = await client.set(KEY, 1)
    async with AsyncStateCache(settings=settings) as cache:
        assert (await cache.namespace("runs").outcome(state.change_id, "42")).verdict == "applied"


# What Postgres says.


async def test_what_was_set_aside_is_told(
    client: AsyncStateCache,
    agents: Agents,
    worker: Worker,
    redis_raw: Any,
    keys: KeySpace,
    psql: Psql,
) -> None:
    await client.set(KEY, "the truth")
    await flush(worker)
    redis_raw.unlink(keys.state(KEY))
    fork = await client.create(KEY, "another", assume_new=True)
    agents.commit("other/1", actor="a\0b")
    parked = await client.get("other/1")
    assert parked is not None
    assert (await client.outcome(fork.change_id, KEY)).verdict == "applied"
    await flush(worker)
    assert rows(psql, "SELECT change_id FROM conflict") == [(fork.change_id,)]
    told = await client.outcome(fork.change_id, KEY)
    assert (told.verdict, told.settled, told.durable, told.position) == ("forked", True, False, fork.position)
    assert (await client.outcome(parked.change_id, "other/1")).verdict == "quarantined"


async def test_what_left_the_stream_unflushed_was_applied_all_the_same(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    first = await client.set(KEY, 1)
    last = await client.set(KEY, 2)
    redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0, approximate=False)
    told = await client.outcome(first.change_id, KEY)
    assert (told.verdict, told.version, told.position) == ("applied", 1, first.position)
    assert (await client.outcome(last.change_id, KEY)).version == 2


async def test_a_redis_that_did_not_open_the_shard_says_nothing(
    behind: AsyncStateCache, proxy: FaultProxy, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    """An old primary that still answers has no word of what its successor applied."""
    shard = keys.shard(KEY)
    fault = proxy.arm("drop_request", at=WRITTEN)
    fault.then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await behind.set(KEY, WRITTEN.decode(), timeout=0.5)
    proxy.refusing = False
    psql.execute("UPDATE shard SET epoch = epoch + 1 WHERE shard = %s", (shard,))
    psql.execute("BEGIN")
    psql.execute("SELECT 1 FROM shard WHERE shard = %s FOR UPDATE", (shard,))  # its opening has to wait
    told = await behind.outcome(caught.value.change_id, KEY, timeout=1.5)
    assert told.verdict == "unknown"
    psql.execute("ROLLBACK")
    assert (await behind.outcome(caught.value.change_id, KEY)).verdict == "not applied"


# Repeats.


async def test_a_repeat_does_not_say_what_it_cannot_know(behind: AsyncStateCache, proxy: FaultProxy) -> None:
    """Its predecessor may have been applied, so a Redis that is away does not mean that nothing was."""
    proxy.arm("drop_reply", at=WRITTEN).then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await behind.set(KEY, WRITTEN.decode(), timeout=0.3)
    change_id = caught.value.change_id
    with pytest.raises(OutcomeUnknown) as again:
        await behind.set(KEY, WRITTEN.decode(), change_id=change_id, timeout=0.3)
    assert (again.value.change_id, (await _only_one(behind)).change_id) == (change_id, change_id)
    proxy.refusing = False
    assert (await behind.set(KEY, WRITTEN.decode(), change_id=change_id)).version == 1
    assert await _none_left(behind)


async def test_a_repeats_refusal_waits_for_the_attempts_before_it(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    """Otherwise the first attempt, still on its way, could be applied after it was said that nothing was."""
    few = through(settings, redis=proxy).model_copy(update={"backlog_entries_max": 1})
    client = make_client(few)
    await client.get(KEY)
    fault = proxy.arm("hold_request", at=WRITTEN)
    fault.then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await client.set(KEY, WRITTEN.decode(), timeout=1.0)
    proxy.refusing = False
    meta = keys.meta(keys.shard(KEY))
    entries = redis_raw.hget(meta, "entries")
    redis_raw.hset(meta, "entries", int(entries) + 1)
    with pytest.raises(Backpressure):
        await client.set(KEY, WRITTEN.decode(), change_id=caught.value.change_id)
    redis_raw.hset(meta, "entries", entries)
    fault.release()
    await fault.answered()
    assert await client.get(KEY) is None
    assert await _none_left(client)


# Cancelled and interrupted.


async def test_a_cancelled_commit_is_asked_about(settings: Settings, proxy: FaultProxy, cache: AsyncStateCache) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as client:
        await client.get(KEY)
        await _cancelled(client.set(KEY, WRITTEN.decode()), proxy.arm("hold_reply", at=WRITTEN))
        (lost,) = client.unknown_outcomes()
        state = await cache.get(KEY)
        assert state is not None
        assert (state.change_id, lost.keys) == (lost.change_id, (KEY,))
        found = await client.outcome(lost.change_id, KEY)
        assert (found.verdict, found.version) == ("applied", 1)
        assert not client.unknown_outcomes()


async def test_a_cancelled_commit_that_may_still_arrive_is_not_called_lost(
    settings: Settings, proxy: FaultProxy
) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as client:
        await client.get(KEY)
        fault = proxy.arm("hold_request", at=WRITTEN)
        await _cancelled(client.set(KEY, WRITTEN.decode()), fault)
        (lost,) = client.unknown_outcomes()
        early = await client.outcome(lost.change_id, KEY, timeout=0.3)
        assert (early.verdict, "may still arrive" in early.reason) == ("unknown", True)
        fault.release()
        await fault.answered()
        assert (await client.outcome(lost.change_id, KEY)).verdict == "applied"


@pytest.mark.parametrize("verb", ["update", "transaction"])
async def test_commits_of_every_verb_are_kept(verb: str, settings: Settings, proxy: FaultProxy) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as client:

        async def work() -> None:
            if verb == "update":
                await client.update(KEY, lambda value: WRITTEN.decode(), default="")
            else:
                async with client.transaction(KEY, "runs/42/plan") as tx:
                    tx.set(KEY, WRITTEN.decode())
                    tx.set("runs/42/plan", 1)

        await client.get(KEY)
        await _cancelled(work(), proxy.arm("hold_reply", at=WRITTEN))
        (lost,) = client.unknown_outcomes()
        assert lost.keys == ((KEY,) if verb == "update" else (KEY, "runs/42/plan"))
        assert {(await client.outcome(lost.change_id, key)).verdict for key in lost.keys} == {"applied"}


async def test_a_commit_that_was_cancelled_while_it_waited_for_postgres_is_kept(cache: AsyncStateCache) -> None:
    writing = asyncio.create_task(_as_coroutine(cache.set(KEY, 1, durability="postgres")))
    async with asyncio.timeout(60):
        while await cache.get(KEY) is None:
            await pause()
    writing.cancel()
    await asyncio.wait([writing])
    (lost,) = cache.unknown_outcomes()
    assert (await cache.outcome(lost.change_id, KEY)).verdict == "applied"


@pytest.mark.parametrize("keys", [(KEY,), (KEY, "runs/43")], ids=["one", "many"])
async def test_a_commit_that_was_cancelled_while_its_client_looked_for_losses_is_kept(
    keys: Sequence[str], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is applied by then: its own answer has shown that a new epoch has begun."""
    looks = asyncio.Event()

    async def look(**_: object) -> None:
        looks.set()
        await asyncio.Event().wait()

    async with AsyncStateCache(settings=settings) as client:
        monkeypatch.setattr(client._runtime.losses, "look", look)
        client._runtime.in_flight.moved = True
        call = client.set(KEY, 1) if len(keys) == 1 else client.set_many(dict.fromkeys(keys, 1))
        writing = asyncio.create_task(_as_coroutine(call))
        await looks.wait()
        writing.cancel()
        await asyncio.wait([writing])
        assert sorted(key for one in client.unknown_outcomes() for key in one.keys) == sorted(keys)
        unknown = client.unknown_outcomes()
        assert {(await client.outcome(one.change_id, one.keys[0])).verdict for one in unknown} == {"applied"}


async def test_a_commit_that_was_cancelled_before_it_was_sent_leaves_nothing(settings: Settings) -> None:
    async with AsyncStateCache(settings=settings.model_copy(update={"redis_connections_max": 1})) as client:
        link = await client._runtime.redis.pool.take(1)
        writing = asyncio.create_task(_as_coroutine(client.set(KEY, 1)))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        client._runtime.redis.pool.give(link)
        assert client.unknown_outcomes() == ()
        assert await client.get(KEY) is None


async def test_no_cancellation_is_lost_wherever_it_strikes(settings: Settings) -> None:
    """A task that was cancelled ends; if it went on, whoever cancelled it would wait for it."""
    for single in (True, False):
        steps = 1  # at 0 it would not even begin
        ended = False
        while not ended:
            few = settings.model_copy(update={"redis_connections_max": 1})
            async with AsyncStateCache(settings=few) as client:
                if single:
                    await client.set(KEY, "before")
                writing = asyncio.create_task(_as_coroutine(client.set(KEY, steps)))
                for _ in range(steps):
                    await asyncio.sleep(0)
                ended = not writing.cancel()
                await asyncio.wait([writing])
                assert writing.cancelled() != ended
            steps += 1
        assert steps > 2


async def test_a_refusal_leaves_nothing(client: AsyncStateCache) -> None:
    state = await client.set(KEY, 1)
    await client.set(KEY, 2)
    with pytest.raises(VersionConflict):
        await client.set(KEY, 3, expected=state)
    assert await _none_left(client)


def test_an_interrupted_commit_of_a_thread_is_asked_about(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Link.run

    async def interrupted(link: Link, commands: Sequence[Any], *, seconds: float) -> Any:
        result = await plain(link, commands, seconds=seconds)
        if WRITTEN.decode() in repr(commands):
            await link.close()
            raise KeyboardInterrupt
        return result

    with StateCache(settings=settings) as cache:
        cache.get(KEY)
        monkeypatch.setattr(Link, "run", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            cache.set(KEY, WRITTEN.decode())
        monkeypatch.undo()
        (lost,) = cache.unknown_outcomes()
        assert lost.change_id in caught.value.__notes__[0]
        assert cache.outcome(lost.change_id, KEY).verdict == "applied"


async def test_what_is_kept_has_a_limit(
    settings: Settings, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unknown_outcomes, "UNKNOWN_MAX", 3)
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as client:
        await client.get(KEY)
        for number in range(5):
            value = f"number {number}"
            await _cancelled(client.set(f"runs/{number}", value), proxy.arm("hold_reply", at=value.encode()))
        assert [one.keys for one in client.unknown_outcomes()] == [("runs/2",), ("runs/3",), ("runs/4",)]
    assert [record.getMessage() for record in caplog.records if record.name == "statecache"] == [
        "more than 3 commits have an unknown outcome; the oldest are forgotten"
    ]
