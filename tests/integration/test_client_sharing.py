"""Transactions hold connections while user code runs: nobody else is starved of them, and no time is spent twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache import AsyncStateCache, RedisUnavailable, Settings
from statecache.clock import monotonic
from tests.fixtures.faults import through
from tests.fixtures.locks import KEY, Place
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.counts_seconds

CONNECTIONS = 4
SLACK_S = 0.5


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


async def test_who_waits_for_a_transaction_is_told_what_for(make_client: MakeClient, few: Settings) -> None:
    client = make_client(few)
    async with client.transaction("runs/1"), client.transaction("runs/2"):
        with pytest.raises(RedisUnavailable, match="all 2 Redis connections that transactions may hold") as caught:
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
