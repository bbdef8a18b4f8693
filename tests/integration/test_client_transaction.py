"""Transactions watch, the script decides, and nothing stays watched on a connection that others will use."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings, StateCache, UsageError, VersionConflict
from statecache.clock import monotonic
from statecache.concurrency import run
from statecache.keys import KeySpace
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy

MARK = "the-unlucky"


@pytest.fixture
def single(make_client: MakeClient, settings: Settings) -> AsyncStateCache:
    """A client with a single connection to Redis."""
    return make_client(settings.model_copy(update={"redis_connections_max": 1}))


async def _is_watching_nothing(single: AsyncStateCache, other: AsyncStateCache, watched: str) -> None:
    """Assert that the connection watches nothing: a watched key, once changed, would abort its next EXEC."""
    call: Any = _awaiting if isinstance(single, AsyncStateCache) else _in_thread
    pool = single._runtime.redis.pool
    link = await call(pool.take, 1)
    pool.give(link)
    await other.set(watched, "changed by somebody")
    replies = await call(link.run, [("MULTI",), ("PING",), ("EXEC",)], seconds=5)
    assert replies[-1] == [b"PONG"]


async def _awaiting(function: Any, *arguments: Any, **more: Any) -> Any:
    return await function(*arguments, **more)


async def _in_thread(function: Any, *arguments: Any, **more: Any) -> Any:
    return await asyncio.to_thread(lambda: run(function(*arguments, **more)))


@every_redis
async def test_an_aborted_transaction_watches_nothing_any_more(single: AsyncStateCache, cache: AsyncStateCache) -> None:
    await cache.set("runs/1", 1)
    with pytest.raises(LookupError):  # noqa: PT012
        async with single.transaction("runs/1") as tx:
            tx.set("runs/1", 2)
            raise LookupError
    await _is_watching_nothing(single, cache, "runs/1")


@every_redis
async def test_a_transaction_that_lost_watches_nothing_any_more(
    single: AsyncStateCache, cache: AsyncStateCache
) -> None:
    await cache.set("runs/1", 1)
    with pytest.raises(VersionConflict) as caught:  # noqa: PT012
        async with single.transaction("runs/1", "runs/1/plan") as tx:
            tx.set("runs/1/plan", 2)
            winner = await cache.set("runs/1", 3)
    assert (caught.value.key, caught.value.actual) == ("runs/1", winner.change_id)
    await _is_watching_nothing(single, cache, "runs/1")


async def test_a_transaction_that_cannot_be_begun_watches_nothing(
    single: AsyncStateCache, cache: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    await cache.set("runs/1", 1)
    redis_raw.set(keys.state("runs/1/plan"), "somebody's")
    with pytest.raises(Exception, match="does not hold what statecache wrote"):
        async with single.transaction("runs/1", "runs/1/plan"):
            pass
    await _is_watching_nothing(single, cache, "runs/1")


async def test_a_transaction_that_was_read_only_or_refused_watches_nothing(
    single: AsyncStateCache, cache: AsyncStateCache, redis_raw: Any
) -> None:
    await cache.set("runs/1", 1)
    async with single.transaction("runs/1"):
        pass
    await _is_watching_nothing(single, cache, "runs/1")
    with pytest.raises(Exception, match=r"Durability 'replica' cannot be given"):
        async with single.transaction("runs/1", durability="replica") as tx:
            tx.set("runs/1", 2)
    await _is_watching_nothing(single, cache, "runs/1")


async def test_a_cancelled_transaction_watches_nothing(cache: AsyncStateCache, settings: Settings) -> None:
    await cache.set("runs/1", 1)
    async with AsyncStateCache(settings=settings.model_copy(update={"redis_connections_max": 1})) as single:
        inside = asyncio.Event()

        async def work() -> None:
            async with single.transaction("runs/1") as tx:
                tx.set("runs/1", 2)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _is_watching_nothing(single, cache, "runs/1")


async def test_a_lost_exec_leaves_no_connection_that_watches(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    single = make_client(through(settings, redis=proxy).model_copy(update={"redis_connections_max": 1}))
    await cache.set("runs/1", 1)
    fault = proxy.arm("drop_reply", at=MARK.encode())
    async with single.transaction("runs/1", actor=MARK) as tx:
        tx.set("runs/1", 2)
    assert fault.struck
    assert tx.states["runs/1"].version == 2
    await _is_watching_nothing(single, cache, "runs/1")


async def test_a_connection_that_cannot_be_unwatched_is_closed_and_hides_no_error(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    single = make_client(through(settings, redis=proxy).model_copy(update={"redis_connections_max": 1}))
    await single.set("runs/1", 1)
    fault = proxy.arm("drop_request", at=b"$7\r\nUNWATCH")
    with pytest.raises(LookupError):  # noqa: PT012
        async with single.transaction("runs/1") as tx:
            tx.set("runs/1", 2)
            raise LookupError
    assert fault.struck
    await _is_watching_nothing(single, cache, "runs/1")


async def test_the_replies_of_an_earlier_exec_are_not_believed(settings: Settings, cache: AsyncStateCache) -> None:
    """Each of them is of the kind that is waited for: only the nonce tells that they answer somebody else."""
    await cache.set("runs/1", 1)
    async with AsyncStateCache(settings=settings) as other:
        committer, shard = other._runtime.committer, other._runtime.keys.shard("runs/1")
        async with other.transaction("runs/2") as tx:
            link = tx._link
            assert link is not None
            earlier = committer.new(
                [other._view.write_of("runs/1", 2, expected="*")], shard, durability="memory", actor="", reason="",
                end=monotonic() + 1,
            )  # fmt: skip
            for command in (("MULTI",), committer.attempts.call(link, earlier, 1.0), ("EXEC",)):
                await link.send(command, seconds=1)
            tx.set("runs/2", 1)
        assert tx.states["runs/2"].version == 1
        assert (await other.get("runs/2")) == tx.states["runs/2"]
    assert not link.alive


@every_redis
async def test_what_touches_a_watched_state_without_changing_it_is_no_conflict(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    """A time to live, or an eviction, aborts the EXEC; nobody was quicker."""
    await client.set("runs/1", 1)
    async with client.transaction("runs/1") as tx:
        tx.set("runs/1", 2)
        redis_raw.pexpire(keys.state("runs/1"), 10**6)
    assert tx.states["runs/1"].version == 2
    async with client.transaction("runs/1") as tx:
        redis_raw.pexpire(keys.state("runs/1"), 10**6)
    assert tx.states == {}


@pytest.mark.own_servers("it ends the connections of others")
async def test_a_transaction_begins_although_the_server_has_closed_its_connection(
    client: AsyncStateCache, redis_raw: Any
) -> None:
    await client.set("runs/1", 1)
    redis_raw.client_kill_filter(_type="normal", skipme=True)
    async with client.transaction("runs/1") as tx:
        tx.set("runs/1", 2)
    assert tx.states["runs/1"].version == 2


async def test_a_transaction_begins_although_its_first_connection_is_lost_at_the_greeting(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy
) -> None:
    client = make_client(through(settings, redis=proxy))
    fault = proxy.arm("reset", at=b"Tells what a new connection must know")
    async with client.transaction("runs/1") as tx:
        tx.set("runs/1", 1)
    assert fault.struck
    assert tx.states["runs/1"].version == 1


async def test_a_transaction_of_a_key_that_is_evicted_meanwhile_goes_on_from_postgres(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    """Only what is clean may be evicted: here it is the record that nobody ever wrote."""
    async with client.transaction("runs/1") as tx:
        tx.set("runs/1", 1)
        redis_raw.unlink(keys.state("runs/1"))
    assert tx.states["runs/1"].version == 1


@pytest.mark.own_servers("it makes the server forget its scripts")
async def test_many_transactions_on_few_connections_do_not_starve_each_other(
    settings: Settings, redis_raw: Any
) -> None:
    """Each holds a connection while it watches; those that lose, or whose script was forgotten, need another turn."""
    few = settings.model_copy(update={"redis_connections_max": 2})
    async with AsyncStateCache(settings=few) as cache:
        await cache.set("runs/1", 0)

        async def add(tx: Any) -> None:
            state = await tx.get("runs/1")
            redis_raw.script_flush()
            tx.set("runs/1", state.value + 1)

        await asyncio.gather(*(cache.transact(["runs/1"], add, timeout=20) for _ in range(12)))
        state = await cache.get("runs/1")
        assert state is not None
        assert (state.value, state.version) == (12, 13)


@every_redis
async def test_two_hundred_and_fifty_six_states_are_one_commit_and_one_entry(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    names = [f"runs/1/{number}" for number in range(256)]
    async with client.transaction(*names) as tx:
        for number, name in enumerate(names):
            tx.set(name, number)
    assert {state.change_id for state in tx.states.values()} == {tx.states[names[0]].change_id}
    assert len(tx.states) == 256
    assert redis_raw.xlen(keys.changes(keys.shard("runs/1"))) == 1
    assert redis_raw.hget(keys.meta(keys.shard("runs/1")), "n") == b"1"
    assert (await client.get(names[255])).value == 255  # type: ignore[union-attr]


@every_redis
async def test_a_transaction_is_of_one_block(cache: AsyncStateCache) -> None:
    """What is asked of it outside of that is refused at once: nothing would ever be written."""
    await cache.set("runs/1", 1)
    tx = cache.transaction("runs/1")
    asked: list[Any] = [lambda: tx.set("runs/1", 3), lambda: tx.create("runs/1", 3), lambda: tx.delete("runs/1")]
    for why in ("has not begun", "is over"):
        for ask in asked:
            with pytest.raises(UsageError, match=f"the transaction {why}.*within its block"):
                ask()
        with pytest.raises(UsageError, match=f"the transaction {why}"):
            await tx.get("runs/1")
        if why == "has not begun":
            async with tx:
                tx.set("runs/1", 2)
    with pytest.raises(UsageError, match=r"the transaction is over.*Make a new one"):
        await tx.__aenter__()
    assert await cache.get("runs/1") == tx.states["runs/1"]
    left = cache.transaction("runs/1")
    with pytest.raises(LookupError):
        async with left:
            raise LookupError
    with pytest.raises(UsageError, match="the transaction is over"):
        left.set("runs/1", 4)


def test_a_transaction_is_of_one_block_in_threads_too(settings: Settings) -> None:
    with StateCache(settings=settings) as cache:
        tx = cache.transaction("runs/1")
        with pytest.raises(UsageError, match="the transaction has not begun"):
            tx.get("runs/1")
        with tx:
            tx.set("runs/1", 1)
        with pytest.raises(UsageError, match="the transaction is over"):
            tx.set("runs/1", 2)
        with pytest.raises(UsageError, match="the transaction is over"), tx:
            pass
        assert cache.get("runs/1") == tx.states["runs/1"]


@every_redis
@pytest.mark.parametrize("verb", ["create", "set"])
async def test_what_is_deleted_in_a_transaction_goes_with_its_end(client: AsyncStateCache, verb: str) -> None:
    await client.set("runs/1", 1, ttl=3600)
    async with client.transaction("runs/1") as tx:
        tx.delete("runs/1")
        getattr(tx, verb)("runs/1", 2)
    assert tx.states["runs/1"].expires_at is None
    state = await client.set("runs/1", 3, ttl=3600)
    async with client.transaction("runs/1") as tx:
        tx.set("runs/1", 4)
    assert tx.states["runs/1"].expires_at == state.expires_at
