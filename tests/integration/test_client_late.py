"""An attempt that was held up on its way is refused: nobody remembers it any more when it arrives."""

from __future__ import annotations

import asyncio

from statecache import AsyncStateCache, Settings
from statecache.model import Position
from tests.fault_proxy import FaultProxy
from tests.fix_faults import through

COMMITS = 8
"""More than a state's `recent` holds."""


async def test_a_blind_write_that_arrives_after_its_repeat_was_forgotten_is_not_applied_again(
    settings: Settings, proxy: FaultProxy, cache: AsyncStateCache
) -> None:
    await cache.set("runs/42", "before")
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as held_up:
        await held_up.get("runs/42")
        fault = proxy.arm("hold_request", at=b"held up")
        mine = await held_up.set("runs/42", "held up", timeout=2.0)
        assert fault.struck
        for number in range(COMMITS):
            last = await cache.set("runs/42", number)
        fault.release()
        await executed(proxy)
        now = await cache.get("runs/42")
    assert now is not None
    assert (now.value, now.version) == (last.value, last.version) == (COMMITS - 1, mine.version + COMMITS)
    assert now.position == last.position == Position(1, last.version)


async def test_a_server_whose_clock_was_set_forward_is_asked_anew(settings: Settings, cache: AsyncStateCache) -> None:
    await cache.set("runs/42", 1)
    link = await cache.tier.redis.pool.take(1.0)
    link.ahead_ms -= 3_600_000
    cache.tier.redis.pool.give(link)
    state = await cache.set("runs/42", 2)
    assert state.version == 2
    assert not link.alive


async def executed(proxy: FaultProxy) -> None:
    """This returns when the proxy has nothing left to hand on: what it held was answered, or its server has it."""
    async with asyncio.timeout(10.0):
        while proxy.holding:  # noqa: ASYNC110 - the proxy runs on this loop
            await asyncio.sleep(0)
