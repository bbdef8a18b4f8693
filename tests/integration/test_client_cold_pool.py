"""Callers with less time than it takes to open a connection: the opening goes on without them, for the next one.

What is slow is the way to the server, 0.05 s in each direction, so that a warm exchange fits in a caller's time and a
new connection, which takes several exchanges, does not. Were each opening given up with its caller, nobody would ever
get through.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from statecache import AsyncStateCache, OutcomeUnknown, Settings, StateCache, Unavailable
from statecache.clock import monotonic
from statecache.concurrency import TASKS, THREADS, run
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.keys import KeySpace
from tests.fixtures.faults import through
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds

DELAY_S = 0.05
TIMEOUT_S = 0.45
WHOLE_S = 20.0
"""In which somebody must get through, in seconds."""


@pytest.fixture
def slow(settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy) -> Settings:
    """Settings that lead through slow proxies."""
    proxy.delay_s = postgres_proxy.delay_s = DELAY_S
    return through(settings, redis=proxy, postgres=postgres_proxy)


async def test_commits_that_have_less_time_each_get_through(slow: Settings, proxy: FaultProxy) -> None:
    async with AsyncStateCache(settings=slow) as client:
        async with asyncio.timeout(WHOLE_S):
            while True:
                with suppress(Unavailable, OutcomeUnknown):
                    await client.set("runs/1", 1, timeout=TIMEOUT_S)
                    break
        for number in range(3):
            await client.set("runs/1", number, timeout=TIMEOUT_S * 2)
    assert proxy.connections < 8


async def test_commits_of_threads_that_have_less_time_each_get_through(slow: Settings, proxy: FaultProxy) -> None:
    def work() -> None:
        with StateCache(settings=slow) as client:
            end = monotonic() + WHOLE_S
            while monotonic() < end:
                with suppress(Unavailable, OutcomeUnknown):
                    client.set("runs/1", 1, timeout=TIMEOUT_S)
                    break
            for number in range(3):
                client.set("runs/1", number, timeout=TIMEOUT_S * 2)

    await asyncio.to_thread(work)
    assert proxy.connections < 8


async def test_readers_that_are_cancelled_each_get_through(slow: Settings) -> None:
    async with AsyncStateCache(settings=slow) as client:
        async with asyncio.timeout(WHOLE_S):
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TIMEOUT_S):
                        await client.get("runs/1", read="primary")
                    break


def _tier(which: str, settings: Settings, io: Any) -> RedisTier | PostgresTier:
    keys = KeySpace(settings.prefix, settings.shards)
    return (RedisTier if which == "redis" else PostgresTier)(settings, keys, io=io)


async def _taken(tier: Any, seconds: float) -> bool:
    try:
        tier.pool.give(await tier.pool.take(seconds))
    except Unavailable as error:
        if error.reason != "connect":
            raise
        return False
    return True


@pytest.mark.parametrize("which", ["redis", "postgres"])
@pytest.mark.parametrize("io", [TASKS, THREADS], ids=["tasks", "threads"])
async def test_an_opening_goes_on_for_whoever_comes_next(which: str, io: Any, slow: Settings) -> None:
    tier: Any = _tier(which, slow, io)
    call = (lambda one: one()) if io is TASKS else (lambda one: asyncio.to_thread(lambda: run(one())))
    assert not await call(partial(_taken, tier, 0.1))
    async with asyncio.timeout(WHOLE_S):
        while not list(tier.pool._idle):
            await pause()
    assert await call(partial(_taken, tier, 0.1))
    await call(tier.pool.close)


@pytest.mark.parametrize("which", ["redis", "postgres"])
@pytest.mark.parametrize("io", [TASKS, THREADS], ids=["tasks", "threads"])
async def test_what_is_being_opened_when_its_client_is_closed_does_not_stay_open(
    which: str, io: Any, slow: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy
) -> None:
    tier: Any = _tier(which, slow, io)
    call = (lambda one: one()) if io is TASKS else (lambda one: asyncio.to_thread(lambda: run(one())))
    assert not await call(partial(_taken, tier, 0.1))
    behind = proxy if which == "redis" else postgres_proxy
    assert behind.standing == 1
    began = monotonic()
    await call(tier.pool.close)
    assert monotonic() - began < 0.2
    async with asyncio.timeout(WHOLE_S):
        while behind.standing:
            await pause()


@pytest.mark.parametrize("which", ["redis", "postgres"])
@pytest.mark.parametrize("io", [TASKS, THREADS], ids=["tasks", "threads"])
async def test_a_silent_server_has_no_more_openings_than_connections(
    which: str, io: Any, settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy
) -> None:
    proxy.silent = postgres_proxy.silent = True
    few = {"redis_connections_max": 3, "postgres_connections_max": 3, "connect_timeout_s": 1.0}
    tier: Any = _tier(which, through(settings, redis=proxy, postgres=postgres_proxy).model_copy(update=few), io)
    call = (lambda one: one()) if io is TASKS else (lambda one: asyncio.to_thread(lambda: run(one())))
    behind = proxy if which == "redis" else postgres_proxy
    for _ in range(8):
        assert not await call(partial(_taken, tier, 0.02))
    await pause()  # the proxy notices what a client has closed
    assert 1 <= behind.standing <= 3
    proxy.silent = postgres_proxy.silent = False
    async with asyncio.timeout(WHOLE_S):
        while not await call(partial(_taken, tier, 0.5)):
            pass
    await call(tier.pool.close)


async def test_a_postgres_that_falls_silent_in_the_middle_of_an_opening_holds_its_place_for_so_long_only(
    settings: Settings, postgres_proxy: FaultProxy
) -> None:
    given = {"connect_timeout_s": 0.5, "timeout_s": WHOLE_S}
    tier: Any = _tier("postgres", through(settings, postgres=postgres_proxy).model_copy(update=given), TASKS)
    fault = postgres_proxy.arm("silence", at=b"statement_timeout")
    began = monotonic()
    assert not await _opened_in_time(tier)
    assert fault.struck
    assert monotonic() - began < 3.0
    assert await _opened_in_time(tier)
    await tier.pool.close()


async def _opened_in_time(tier: Any) -> bool:
    """Return whether a caller with much time gets a connection."""
    try:
        tier.pool.give(await tier.pool.take(WHOLE_S))
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("at_once", [1, 8])
async def test_calls_that_wait_for_a_silent_postgres_are_served_by_redis_in_the_end(
    settings: Settings, postgres_proxy: FaultProxy, at_once: int
) -> None:
    async with AsyncStateCache(settings=settings) as client:
        await client.set("runs/1", 1)
    postgres_proxy.silent = True
    behind = through(settings, postgres=postgres_proxy).model_copy(update={"connect_timeout_s": 1.0})
    async with AsyncStateCache(settings=behind) as client:
        states = await asyncio.gather(*(client.get("runs/1", timeout=8.0) for _ in range(at_once)))
        assert [state and state.value for state in states] == [1] * at_once
