"""An error that does not say "unknown" says that nothing was applied: whatever is in the way, and whenever it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import psycopg
import pytest
from redis.exceptions import ReadOnlyError, ResponseError

from statecache import (
    AsyncStateCache,
    DurabilityNotMet,
    OutcomeUnknown,
    PostgresUnavailable,
    RedisUnavailable,
    Settings,
    State,
    Unavailable,
    VersionConflict,
    backoff,
)
from statecache.clock import monotonic
from statecache.concurrency import Concurrency, Tasks
from statecache.core.epoch import opener
from statecache.core.epoch.gate import AttemptResult, Gate
from statecache.core.redis.connection import Link
from statecache.keys import KeySpace
from statecache.rules.epochs import Refusal
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeSettings
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.counts_seconds

KEY = "runs/42"
COMMITS = 8
"""More than a state's `recent` holds."""
GRACE_S = 1.5

Run = Callable[[Link, Sequence[Any], float], Any]


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """A client of its own, whose connections are tampered with."""
    async with AsyncStateCache(settings=settings) as opened:
        yield opened


@pytest.fixture
def meddle(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Run], Run]], None]:
    """A function that puts something between clients and their connections to Redis."""
    plain = Link.run

    async def run(link: Link, commands: Sequence[Any], seconds: float) -> Any:
        return await plain(link, commands, seconds=seconds)

    def between(around: Callable[[Run], Run]) -> None:
        meddled = around(run)

        async def instead(link: Link, commands: Sequence[Any], *, seconds: float) -> Any:
            return await meddled(link, commands, seconds)

        monkeypatch.setattr(Link, "run", instead)

    return between


async def _value(settings: Settings) -> Any:
    async with AsyncStateCache(settings=settings) as other:
        state = await other.get(KEY)
    return state and state.value


async def test_a_refused_greeting_after_a_lost_reply(
    client: AsyncStateCache, settings: Settings, meddle: Any, redis_raw: Any, keys: KeySpace
) -> None:
    """The server that the next connection meets is pinned to something else, or gives fewer rights."""
    pinned = redis_raw.hget(keys.meta(0), "shards")

    def around(run: Run) -> Run:
        async def lossy(link: Link, commands: Sequence[Any], seconds: float) -> Any:
            replies = await run(link, commands, seconds)
            if "the unlucky" in repr(commands[0]):
                await link.close()
                redis_raw.hset(keys.meta(0), "shards", "99")
                raise RedisUnavailable("connection", detail="the reply was lost")
            return replies

        return lossy

    await client.get(KEY)
    meddle(around)
    try:
        with pytest.raises(OutcomeUnknown, match="99"):
            await client.set(KEY, "the unlucky")
    finally:
        redis_raw.hset(keys.meta(0), "shards", pinned)
    assert await _value(settings) == "the unlucky"


async def test_a_client_that_is_closed_while_its_commit_is_under_way(
    client: AsyncStateCache, settings: Settings, meddle: Any
) -> None:
    applied, closed = asyncio.Event(), asyncio.Event()
    await client.set(KEY, "before")

    def around(run: Run) -> Run:
        async def slow(link: Link, commands: Sequence[Any], seconds: float) -> Any:
            replies = await run(link, commands, seconds)
            if "the unlucky" in repr(commands[0]) and not applied.is_set():
                applied.set()
                await closed.wait()
                raise RedisUnavailable("connection", detail="it was closed")
            return replies

        return slow

    meddle(around)
    writing = asyncio.create_task(_awaited(client.set(KEY, "the unlucky")))
    await applied.wait()
    await client.close()
    closed.set()
    with pytest.raises(OutcomeUnknown, match="closed"):
        await writing
    assert await _value(settings) == "the unlucky"


async def test_a_client_that_is_closed_while_it_waits_for_postgres(client: AsyncStateCache, meddle: Any) -> None:
    """Nobody flushes here."""
    applied = asyncio.Event()
    await client.set(KEY, "before")

    def around(run: Run) -> Run:
        async def telling(link: Link, commands: Sequence[Any], seconds: float) -> Any:
            replies = await run(link, commands, seconds)
            if "the unlucky" in repr(commands[0]):
                applied.set()
            return replies

        return telling

    meddle(around)
    writing = asyncio.create_task(_awaited(client.set(KEY, "the unlucky", durability="postgres", timeout=20)))
    await applied.wait()
    await client.close()
    with pytest.raises(OutcomeUnknown):
        await writing


@pytest.mark.parametrize("refused", ["HMGET", "XRANGE"])
async def test_a_lookup_that_redis_refuses_finds_nothing_out(
    client: AsyncStateCache, cache: AsyncStateCache, meddle: Any, refused: str
) -> None:
    """Neither the state nor Postgres remembers the change: only the stream tells, and it cannot be asked."""
    mine = await cache.set(KEY, "mine")
    for number in range(COMMITS):
        last = await cache.set(KEY, number)
    await client.get(KEY)

    def around(run: Run) -> Run:
        async def busy(link: Link, commands: Sequence[Any], seconds: float) -> Any:
            if commands[0][0] == refused:
                return [ResponseError("BUSY Redis is busy running a script")] * len(commands)
            return await run(link, commands, seconds)

        return busy

    meddle(around)
    with pytest.raises(OutcomeUnknown, match="BUSY"):
        await client.set(KEY, "mine", change_id=mine.change_id, timeout=5)
    meddle(lambda run: run)
    assert await cache.get(KEY) == last
    again: State[Any] = await client.set(KEY, "mine", change_id=mine.change_id)
    assert (again.version, again.position) == (mine.version, mine.position)


async def test_a_read_only_transaction_whose_exec_is_refused_is_compared(
    client: AsyncStateCache, cache: AsyncStateCache, meddle: Any
) -> None:
    await cache.set(KEY, 1)

    def around(run: Run) -> Run:
        async def busy(link: Link, commands: Sequence[Any], seconds: float) -> Any:
            replies = await run(link, commands, seconds)
            return [b"OK", ResponseError("BUSY")] if commands[0][0] == "MULTI" else replies

        return busy

    meddle(around)
    with pytest.raises(VersionConflict):  # noqa: PT012
        async with client.transaction(KEY) as tx:
            await tx.get(KEY)
            await cache.set(KEY, 2)
    async with client.transaction(KEY) as tx:
        assert (await tx.get(KEY)).value == 2  # type: ignore[union-attr]


async def test_a_transaction_that_is_fenced_needs_no_second_connection(
    settings: Settings, redis_raw: Any, keys: KeySpace
) -> None:
    """Its gate closes under it, and the shard is opened on the one connection that there is."""
    meta = keys.meta(keys.shard(KEY))
    single = settings.model_copy(update={"redis_connections_max": 1})
    async with AsyncStateCache(settings=single) as client, client.transaction(KEY, timeout=5) as tx:
        redis_raw.hset(meta, mapping={"continues": redis_raw.hget(meta, "replid"), "replid": ""})
        tx.set(KEY, 1)
    assert tx.states[KEY].position.epoch > 1  # type: ignore[union-attr]


async def test_a_server_that_was_demoted_is_left_for_its_successor(client: AsyncStateCache, meddle: Any) -> None:
    """Connections to it stand, where a name or an address leads to another server by now."""
    await client.set(KEY, 1)
    demoted: list[Link] = []

    def around(run: Run) -> Run:
        async def behind_a_name(link: Link, commands: Sequence[Any], seconds: float) -> Any:
            demoted[:] = demoted or [link]
            if link is demoted[0] and commands[0][0] in ("EVAL", "EVALSHA"):
                return [ReadOnlyError("READONLY You can't write against a read only replica.")] * len(commands)
            return await run(link, commands, seconds)

        return behind_a_name

    meddle(around)
    assert (await client.set(KEY, 2, timeout=5)).version == 2
    assert not demoted[0].alive


async def test_a_read_only_postgres_keeps_a_gate_closed_and_says_so(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.set(KEY, 1)
    meta = keys.meta(keys.shard(KEY))
    redis_raw.hset(meta, mapping={"continues": redis_raw.hget(meta, "replid"), "replid": ""})

    async def refused(*_: Any, **__: Any) -> Any:
        raise psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT in a read-only transaction")

    with monkeypatch.context() as patched:
        patched.setattr(Gate, "attempt", refused)
        with pytest.raises(Unavailable, match="read-only transaction") as caught:
            await client.set(KEY, 2, timeout=1.5)
    assert caught.value.reason == "epoch"
    assert (await client.set(KEY, 3)).version == 2


@pytest.mark.parametrize("late", [PostgresUnavailable("timeout"), RedisUnavailable("timeout")])
async def test_an_opening_for_which_no_time_is_left_tells_what_the_one_before_it_met(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch, late: Exception
) -> None:
    await client.set(KEY, 1)
    shard = keys.shard(KEY)
    redis_raw.hset(keys.meta(shard), "replid", "closed")
    ahead, tries = [0.0], iter([AttemptResult(opened=[], refused={shard: Refusal(why="somebody is at it", wait=True)})])

    async def attempted(*_: Any, **__: Any) -> AttemptResult:
        for outcome in tries:
            return outcome
        raise late

    async def overslept(_: Concurrency, seconds: float) -> None:
        ahead[0] += 60

    monkeypatch.setattr(Gate, "attempt", attempted)
    monkeypatch.setattr(Tasks, "sleep", overslept)
    for module in (opener, backoff):
        monkeypatch.setattr(module, "monotonic", lambda: monotonic() + ahead[0])
    with pytest.raises(Unavailable, match="somebody is at it") as caught:
        await client.set(KEY, 2, timeout=30)
    assert caught.value.reason == "epoch"


async def test_time_that_was_spent_on_waiting_for_a_connection_is_spent(settings: Settings, proxy: FaultProxy) -> None:
    single = through(settings, redis=proxy).model_copy(update={"redis_connections_max": 1})
    async with AsyncStateCache(settings=single) as client:
        await client.get(KEY)
        link = await client._runtime.redis.pool.take(1)
        begun = monotonic()
        writing = asyncio.create_task(_awaited(client.set(KEY, 1, timeout=4)))
        await asyncio.wait([writing], timeout=3.6)
        proxy.freeze()
        client._runtime.redis.pool.give(link)
        with pytest.raises((OutcomeUnknown, RedisUnavailable)):
            await writing
        assert monotonic() - begun < 4 + 1.0
        proxy.thaw()


async def test_who_waits_behind_anothers_dial_waits_no_longer_than_its_time(
    client: AsyncStateCache, meddle: Any
) -> None:
    dialing = asyncio.Event()
    await client.set(KEY, 1)

    def around(run: Run) -> Run:
        async def silent(link: Link, commands: Sequence[Any], seconds: float) -> Any:
            if "Tells what a new connection must know" in repr(commands[0]):
                dialing.set()
                async with asyncio.timeout(seconds):
                    await asyncio.Event().wait()
            return await run(link, commands, seconds)

        return silent

    meddle(around)
    patient = asyncio.create_task(_awaited(client.set(KEY, 2, durability="postgres", timeout=10)))
    await dialing.wait()
    begun = monotonic()
    with pytest.raises(OutcomeUnknown, match=OutcomeUnknown.awaited):  # it was sent, and no worker runs
        await client.set(KEY, 3, durability="postgres", timeout=0.5)
    assert monotonic() - begun < 0.5 + GRACE_S
    applied = await client.get(KEY)
    assert applied is not None
    assert applied.value == 3
    patient.cancel()
    await asyncio.wait([patient])


@pytest.mark.own_servers("it changes settings of the server")
async def test_a_repeat_that_could_not_write_vouches_for_no_copy(make_settings: MakeSettings, redis_raw: Any) -> None:
    """Redis has no memory, so the repeat leaves nothing behind which a WAIT would wait for."""
    async with AsyncStateCache(settings=make_settings()) as client:
        mine = await client.set(KEY, 1, durability="disk")
        redis_raw.config_set("maxmemory", 1)
        try:
            repeated = await client.set(KEY, 1, change_id=mine.change_id)
            with pytest.raises(DurabilityNotMet) as caught:
                await client.set(KEY, 1, change_id=mine.change_id, durability="disk")
        finally:
            redis_raw.config_set("maxmemory", 0)
        again = await client.set(KEY, 1, change_id=mine.change_id, durability="disk")
    assert caught.value.reached == 0
    assert (repeated.version, again.version) == (1, 1)


async def _awaited(call: Any) -> Any:
    return await call
