"""Going down well: what is refused, let end, given back, waited for, and told when a client closes with a deadline."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, DrainReport, LostCommit, OutcomeUnknown, Settings, UsageError
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, flush, flushing, rows
from tests.fixtures.servers import MakeClient
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds

KEY = "runs/42"
NOTHING = DrainReport()
GRACE_S = 2.5
"""What telling may take beyond the deadline, on a machine that has other things to do."""

Psql = psycopg.Connection[Any]


async def _as_coroutine(call: Any) -> Any:
    return await call


async def _closes(client: AsyncStateCache, *, drain: float) -> asyncio.Task[DrainReport]:
    """Begin to close the client; when this returns, new calls are refused."""
    closing = asyncio.create_task(_as_coroutine(client.close(drain=drain)))
    async with asyncio.timeout(60):
        while not _tier(client).in_flight.closing:
            await pause()
    return closing


def _tier(client: Any) -> Any:
    inner = getattr(client, "_client", client)
    return inner._runtime


# Waiting for Postgres.


async def test_what_was_acknowledged_is_in_postgres_when_it_is_closed(
    client: AsyncStateCache, worker: Worker, psql: Psql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="statecache")
    async with flushing(worker):
        for number in range(40):
            await client.set(f"runs/{number}", number)
        left = await client.close(drain=20)
    assert left == NOTHING
    assert not left
    assert rows(psql, "SELECT count(*) FROM change") == [(40,)]
    assert ["nothing is left" in record.getMessage() for record in caplog.records if record.name == "statecache"] == [
        True
    ]


async def test_what_is_not_in_postgres_by_the_deadline_is_told(
    client: AsyncStateCache, settings: Settings, worker: Worker, keys: KeySpace, caplog: pytest.LogCaptureFixture
) -> None:
    """Of others' commits, and of those that were flushed, nothing is said."""
    await client.set(KEY, 0)
    await flush(worker)
    await client.set(KEY, 1)
    async with AsyncStateCache(settings=settings.model_copy(update={"writer": "another"})) as other:
        await other.set(KEY, "another's")
        await other.set("runs/43", "another's")
    for number in range(2):
        await client.set(KEY, number)
    begun = monotonic()
    left = await client.close(drain=0.3)
    assert 0.2 < monotonic() - begun < 0.3 + GRACE_S
    assert left == DrainReport(commits=3, keys=(KEY,), shards=(keys.shard(KEY),))
    assert left
    (line,) = [record.getMessage() for record in caplog.records if record.name == "statecache"]
    assert f"3 commits ('{KEY}') of 1 shards are not known to be in Postgres" in line


async def test_a_client_that_wrote_nothing_waits_for_nothing(client: AsyncStateCache, agents: Agents) -> None:
    agents.commit(KEY)
    assert await client.get(KEY) is not None
    begun = monotonic()
    assert await client.close(drain=20) == NOTHING
    assert monotonic() - begun < GRACE_S


async def test_what_postgres_has_set_aside_is_not_waited_for(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    await client.set(KEY, "the truth")
    await flush(worker)
    redis_raw.unlink(keys.state(KEY))
    await client.create(KEY, "another", assume_new=True)
    await flush(worker)
    assert await client.close(drain=20) == NOTHING


async def test_servers_that_are_away_are_waited_for_until_the_deadline(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy, keys: KeySpace
) -> None:
    client = make_client(through(settings, redis=proxy, postgres=postgres_proxy))
    await client.set(KEY, 1)
    for one in (proxy, postgres_proxy):
        await one.cut_off()
    begun = monotonic()
    left = await client.close(drain=0.5)
    assert monotonic() - begun < 0.5 + GRACE_S
    assert left == DrainReport(shards=(keys.shard(KEY),))


async def test_a_postgres_that_comes_back_in_time_is_enough(
    make_client: MakeClient, settings: Settings, postgres_proxy: FaultProxy, worker: Worker
) -> None:
    client = make_client(through(settings, postgres=postgres_proxy))
    await client.set(KEY, 1)
    await postgres_proxy.cut_off()
    closing = await _closes(client, drain=20)
    await flush(worker)
    postgres_proxy.refusing = False
    assert await closing == NOTHING


# Failovers.


async def test_a_commit_of_an_earlier_epoch_counts_only_where_postgres_holds_it(
    client: AsyncStateCache, worker: Worker, psql: Psql, keys: KeySpace
) -> None:
    """The watermark has passed both positions, one of them without its commit."""
    held = await client.set(KEY, 1)
    await flush(worker)
    lost = await client.set("other/1", 1)
    assert held.position is not None
    assert lost.position is not None
    shards = [keys.shard(KEY), keys.shard("other/1")]
    assert shards[0] != shards[1]
    psql.execute("UPDATE shard SET epoch = epoch + 1, flushed = 100 WHERE shard = ANY(%s)", (shards,))
    begun = monotonic()
    left = await client.close(drain=20)
    gone = LostCommit(change_id=lost.change_id, key="other/1", position=lost.position, ended_by=lost.position.epoch)
    assert left == DrainReport(shards=(shards[1],), lost=(gone,))
    assert monotonic() - begun < GRACE_S


async def test_positions_of_two_epochs_of_one_shard_are_both_waited_for(
    client: AsyncStateCache, keys: KeySpace
) -> None:
    accounts = _tier(client).in_flight
    state = await client.set(KEY, 1)
    assert state.position is not None
    accounts.acknowledge(keys.shard(KEY), type(state.position)(2, 7))
    accounts.acknowledge(keys.shard(KEY), type(state.position)(2, 5))
    assert accounts.tails() == [(keys.shard(KEY), 1, 1), (keys.shard(KEY), 2, 7)]


# Leases.


async def test_leases_are_given_back_before_postgres_is_waited_for(
    client: AsyncStateCache, cache: AsyncStateCache, worker: Worker
) -> None:
    lock = client.lock(KEY, ttl=60)
    lease = await lock.__aenter__()
    await lease.set(KEY, 1)
    closing = await _closes(client, drain=20)
    async with cache.lock(KEY, timeout=5):
        assert not closing.done()
    with pytest.raises(UsageError, match="it is closing"):
        await _as_coroutine(client.lock(KEY).__aenter__())
    await flush(worker)
    assert await closing == NOTHING
    assert lease.lost


async def test_leases_that_cannot_be_given_back_are_told(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy
) -> None:
    client = make_client(through(settings, redis=proxy))
    lock = client.lock(KEY, ttl=60)  # which is left when it is forgotten
    await lock.__aenter__()
    await proxy.cut_off()
    left = await client.close(drain=0.2)
    assert left == DrainReport(leases=(KEY,))
    assert str(left) == "1 leases were not given back"


# Calls.


async def test_new_calls_are_refused_and_those_under_way_end(client: AsyncStateCache, worker: Worker) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(value: int) -> int:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(_as_coroutine(go_on.wait()), loop).result(20)
        return value + 1

    async def slow_task(value: int) -> int:
        started.set()
        await go_on.wait()
        return value + 1

    function: Any = slow_task if isinstance(client, AsyncStateCache) else slow
    await client.set(KEY, 1)
    updating = asyncio.create_task(_as_coroutine(client.update(KEY, function)))
    await started.wait()
    async with flushing(worker):
        closing = await _closes(client, drain=20)
        for call in (
            client.get("runs/44"), client.set(KEY, 2), client.delete(KEY), client.update(KEY, lambda value: value),
            client.transact([KEY], lambda tx: None),
        ):  # fmt: skip
            with pytest.raises(UsageError, match="it is closing"):
                await _as_coroutine(call)
        with pytest.raises(UsageError, match="it is closing"):
            async with client.transaction(KEY):
                pass
        assert not closing.done()
        go_on.set()
        assert (await updating).value == 2
        assert await closing == NOTHING
    with pytest.raises(UsageError, match="it is closed"):
        await client.set(KEY, 3)


async def test_what_a_call_under_way_calls_is_part_of_it(cache: AsyncStateCache, worker: Worker) -> None:
    """A function given to a verb may use the client; a transaction may commit, and be tried again."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def both(tx: Any) -> None:
        tx.set(KEY, 1)
        started.set()
        await go_on.wait()
        await cache.set("other/1", 1)

    working = asyncio.create_task(cache.transact([KEY], both))
    await started.wait()
    async with flushing(worker):
        closing = await _closes(cache, drain=20)
        go_on.set()
        await working
        assert await closing == NOTHING


async def test_a_step_under_way_ends_and_its_result_is_kept(
    cache: AsyncStateCache, make_client: MakeClient, settings: Settings, worker: Worker
) -> None:
    """Were its end refused, nobody would know any more that it has had its effect."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def charge(step: Any) -> str:
        started.set()
        await go_on.wait()
        return "receipt"

    def never(step: Any) -> str:
        raise AssertionError("it ran a second time")

    async with flushing(worker):
        working = asyncio.create_task(cache.step(KEY, "charge", charge))
        await started.wait()
        closing = await _closes(cache, drain=20)
        with pytest.raises(UsageError, match="it is closing"):
            await cache.step(KEY, "another", charge)
        go_on.set()
        assert (await working, await closing) == ("receipt", NOTHING)
        assert await make_client(settings).step(KEY, "charge", never) == "receipt"


async def test_a_transaction_under_way_may_commit(client: AsyncStateCache, worker: Worker) -> None:
    await client.set(KEY, 1)
    async with flushing(worker):
        async with client.transaction(KEY) as tx:
            closing = await _closes(client, drain=20)
            tx.set(KEY, 2)
        assert tx.states[KEY].version == 2
        assert await closing == NOTHING


async def test_a_call_that_does_not_end_is_cut_off_and_told(cache: AsyncStateCache) -> None:
    started = asyncio.Event()

    async def endless(value: int) -> int:
        started.set()
        await asyncio.Event().wait()
        return value

    working = asyncio.create_task(cache.update(KEY, endless, default=0))
    await started.wait()
    left = await cache.close(drain=0.2)
    assert left == DrainReport(under_way=1)
    working.cancel()
    await asyncio.wait([working])


async def test_a_commit_that_is_cut_off_is_unsettled(settings: Settings, proxy: FaultProxy) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as client:
        await client.get(KEY)
        proxy.arm("hold_reply", at=b"a value")
        writing = asyncio.create_task(_as_coroutine(client.set(KEY, "a value")))
        await asyncio.sleep(0)
        assert (await client.close(drain=0.3)).under_way == 1
        with pytest.raises(OutcomeUnknown) as caught:
            await writing
        assert [one.change_id for one in client.unknown_outcomes()] == [caught.value.change_id]


async def test_closing_without_a_deadline_waits_for_nothing(client: AsyncStateCache) -> None:
    await client.set(KEY, 1)
    await client.close()
    with pytest.raises(UsageError, match="it is closed"):
        await client.set(KEY, 1)


@pytest.mark.parametrize("drain", [-1, float("nan"), float("inf"), "ten"])
async def test_a_deadline_that_is_none_is_refused_and_closes_nothing(client: AsyncStateCache, drain: Any) -> None:
    with pytest.raises(UsageError, match="drain="):
        await client.close(drain=drain)
    assert (await client.set(KEY, 1)).version == 1


def test_in_another_event_loop_it_is_refused_and_closes_nothing(settings: Settings) -> None:
    client = AsyncStateCache(settings=settings)

    async def written() -> None:
        await client.set(KEY, 1)

    async def closed() -> None:
        with pytest.raises(UsageError, match="another event loop"):
            await client.close()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(written())
        second.run(closed())
        first.run(written())
        first.run(client.close())
        second.run(client.close())  # which it is already
