"""Transactions hold connections while user code runs: nobody else is starved of them, and no time is spent twice."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

import pytest

from statecache import AsyncStateCache, BulkError, OutcomeUnknown, RedisUnavailable, Settings
from statecache.clock import monotonic
from statecache.core.commit.attempts import SEND_S_MIN
from tests.fixtures.faults import through
from tests.fixtures.locks import KEY, Place
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds

CONNECTIONS = 4
SLACK_S = 0.5
_LATE = "the time was up before the commit was sent"


@pytest.fixture
def few(settings: Settings) -> Settings:
    """Settings of a client with few connections."""
    return settings.model_copy(update={"redis_connections_max": CONNECTIONS})


async def _as_coroutine(call: Any) -> Any:
    return await call


@every_redis
async def test_as_many_transactions_as_there_are_connections_may_each_write_something_else(
    make_client: MakeClient, few: Settings
) -> None:
    client = make_client(few)

    async def work(number: int) -> int:
        async with client.transaction(f"runs/{number}", timeout=5) as tx:
            tx.set(f"runs/{number}", (await client.set(f"notes/{number}", number, timeout=5)).value)
        return int(tx.states[f"runs/{number}"].value)

    assert await asyncio.gather(*map(work, range(4 * CONNECTIONS))) == [*range(4 * CONNECTIONS)]


async def test_thousands_of_writes_in_one_moment_are_all_made(cache: AsyncStateCache) -> None:
    states = await asyncio.gather(*(cache.set(f"runs/{number}", number, timeout=120) for number in range(3000)))
    assert [state.value for state in states] == [*range(3000)]


@every_redis
async def test_who_only_queues_in_this_process_is_told_so_and_is_not_applied(few: Settings, proxy: FaultProxy) -> None:
    """The server needs a moment for each. What finds no connection in time is not sent, so it is not applied."""
    names = [f"runs/{number}" for number in range(500)]
    async with AsyncStateCache(settings=through(few, redis=proxy)) as client:
        await client.set_many(dict.fromkeys(names, "before"))
        proxy.delay_s = 0.02
        found = await asyncio.gather(
            *(client.set(name, "after", timeout=1.5) for name in names), return_exceptions=True
        )  # fmt: skip
        proxy.delay_s = 0.0
        refused = {name: one for name, one in zip(names, found, strict=True) if isinstance(one, RedisUnavailable)}
        written = [one for one in found if not isinstance(one, BaseException)]
        assert written
        assert refused
        assert len(written) + len(refused) >= len(names) - CONNECTIONS  # a process that is busy may read too late
        for error in refused.values():
            told = r"\(pool\): waited [12](\.\d+)? s for a connection of 4(, none of which is open yet)?\. This proc"
            assert re.search(told, str(error))  # a late answer closes the connection on which it comes
        kept = await client.get_many([*refused], read="primary")
    assert {state and state.value for state in kept.values()} == {"before"}


async def test_an_answer_that_does_not_come_to_who_was_sent_late_says_that_too(
    make_client: MakeClient, few: Settings, proxy: FaultProxy
) -> None:
    client = make_client(through(few.model_copy(update={"redis_connections_max": 1}), redis=proxy))
    await client.set_many({"runs/1": 0, "runs/2": 0})
    fault = proxy.arm("hold_reply", at=b"the-first")
    first = asyncio.create_task(_as_coroutine(client.set("runs/1", 1, actor="the-first", timeout=30)))
    await fault.wait()
    second = asyncio.create_task(_as_coroutine(client.set("runs/2", 2, actor="the-second", timeout=2.0)))
    with suppress(TimeoutError):
        async with asyncio.timeout(1.5):
            await asyncio.wait([second])
    proxy.arm("silence", at=b"the-second").then(lambda: setattr(proxy, "silent", True))
    fault.release()
    with pytest.raises(OutcomeUnknown, match=r"it was sent with 0\.\d+ s left, having waited 1\.\d s for a connection"):
        await second
    proxy.silent = False
    assert (await first).version == 2


async def test_who_has_hardly_any_time_left_sends_nothing(make_client: MakeClient, settings: Settings) -> None:
    """A server could answer in it here; the answer would hardly ever be looked for in time."""
    client, short_s = make_client(settings), SEND_S_MIN / 2
    await client.set("runs/1", "before")
    with pytest.raises(RedisUnavailable, match=_LATE):
        await client.set("runs/1", "after", timeout=short_s)
    with pytest.raises(BulkError, match=_LATE):
        await client.set_many({"runs/1": "after"}, timeout=short_s)
    state = await client.get("runs/1")
    assert state is not None
    assert (state.value, state.version) == ("before", 1)


async def test_a_commit_whose_time_was_up_says_what_it_was_spent_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncStateCache(settings=settings) as client:
        hydrator = client._runtime.hydrator
        look = hydrator.look

        async def slowly(keys: Any, *, end: float) -> Any:
            looked = await look(keys, end=end)
            while monotonic() < end:
                await pause()
            return looked

        monkeypatch.setattr(hydrator, "look", slowly)
        told = rf"{_LATE}, of which (.*, )?0\.[1-4]\d* s loading states from Postgres\. Whether"
        with pytest.raises(RedisUnavailable, match=told):
            await client.set("runs/1", 1, timeout=0.4)


async def test_a_transaction_that_has_hardly_any_time_left_at_its_end_sends_nothing(cache: AsyncStateCache) -> None:
    async def end_late() -> None:
        async with cache.transaction("runs/1") as tx:
            tx.set("runs/1", "after")
            tx._left_s = SEND_S_MIN / 2

    await cache.set("runs/1", "before")
    with pytest.raises(RedisUnavailable, match=_LATE):
        await end_late()
    assert (await cache.set("runs/1", "after")).version == 2


async def test_who_waits_for_a_transaction_is_told_what_for(make_client: MakeClient, few: Settings) -> None:
    client = make_client(few)
    async with client.transaction("runs/1"), client.transaction("runs/2"):
        told = r"waited 0\.[12]\d* s for one of the 2 connections that transactions may hold"
        with pytest.raises(RedisUnavailable, match=told) as caught:
            async with client.transaction("runs/3", timeout=0.2):
                pass
        assert caught.value.reason == "pool"
        assert (await client.set("runs/4", 1, timeout=5)).version == 1
    async with client.transaction("runs/3") as tx:
        tx.set("runs/3", 1)
    assert tx.states["runs/3"].version == 1


async def test_a_lease_is_renewed_however_busy_the_connections_are(
    cache: AsyncStateCache, few: Settings, place: Place
) -> None:
    async with AsyncStateCache(settings=few) as client, client.lock(KEY, ttl=1) as lease:
        pool = client._runtime.redis.pool
        taken = [await pool.take(5) for _ in range(CONNECTIONS)]
        try:
            await place.until_prolonged(place.lease().until_ms + 1500)
            assert not lease.lost
        finally:
            for link in taken:
                pool.give(link)
        assert (await lease.set(KEY, 1)).version == 1


async def test_a_lease_that_broke_a_connection_is_renewed_on_another(
    few: Settings, proxy: FaultProxy, place: Place
) -> None:
    async with AsyncStateCache(settings=through(few, redis=proxy)) as client, client.lock(KEY, ttl=2) as lease:
        for _ in range(2):
            await place.until_prolonged(place.lease().until_ms + 700)
            proxy.cut_all()
        await place.until_prolonged(place.lease().until_ms + 700)
        assert not lease.lost


# Time.


@pytest.fixture
def behind(make_client: MakeClient, settings: Settings, proxy: FaultProxy) -> AsyncStateCache:
    """A client behind a proxy."""
    return make_client(through(settings, redis=proxy))


async def test_what_its_begin_has_taken_is_not_there_for_its_end(behind: AsyncStateCache, proxy: FaultProxy) -> None:
    await behind.set("runs/1", 1)

    async def work() -> None:
        async with behind.transaction("runs/1", timeout=2.0) as tx:
            tx.set("runs/1", 2)
            proxy.freeze()

    begun, fault = monotonic(), proxy.arm("hold_reply", at=b"$5\r\nWATCH")
    writing = asyncio.create_task(work())
    await fault.wait()
    asyncio.get_running_loop().call_later(1.2, fault.release)
    with pytest.raises(Exception, match=r"unavailable|outcome"):
        await writing
    proxy.thaw()
    assert monotonic() - begun < 2.0 + SLACK_S


@pytest.mark.parametrize("ended_by", [LookupError, asyncio.CancelledError])
async def test_a_transaction_that_was_left_ends_in_its_time_though_redis_is_silent(
    behind: AsyncStateCache, proxy: FaultProxy, ended_by: type[BaseException]
) -> None:
    await behind.set("runs/1", 1)
    begun = monotonic()
    with pytest.raises(ended_by):  # noqa: PT012
        async with behind.transaction("runs/1", timeout=1.0) as tx:
            tx.set("runs/1", 2)
            proxy.freeze()
            raise ended_by
    proxy.thaw()
    assert monotonic() - begun < (1.0 if ended_by is LookupError else 0.0) + SLACK_S
