"""Signals: set once, they wake every waiter, and none of them waits longer than it said."""

from __future__ import annotations

import asyncio

from statecache.concurrency.waking import TaskSignal


async def test_a_signal_wakes_all_who_wait_and_whoever_comes_later() -> None:
    signal = TaskSignal()
    waiting = [asyncio.create_task(signal.wait(60)) for _ in range(3)]
    await asyncio.sleep(0)
    signal.set()
    assert list(await asyncio.gather(*waiting)) == [True] * 3
    assert await signal.wait(0)


async def test_a_wait_has_an_end_and_leaves_nothing_behind() -> None:
    signal = TaskSignal()
    assert not await signal.wait(0)
    assert not await signal.wait(-1)
    cancelled = asyncio.create_task(signal.wait(60))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert (cancelled.cancelled(), signal._waiting) == (True, [])
    signal.set()
