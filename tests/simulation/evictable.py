"""What is clean becomes evictable: it gets a time to live when its entry has left the stream, whoever wrote it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import redis

from statecache.clock import monotonic
from tests.simulation.arena import Arena

EVICTABLE_S = 40.0
"""Longer than a worker needs to tidy up once more."""
LOOK_S = 0.25


async def never_evictable(here: Arena) -> list[str]:
    """Wait until every state of Redis has a time to live, and return the findings where that does not come about.

    Nobody writes any more, and everything is flushed.
    """
    left, end = await asyncio.to_thread(_without_ttl, here), monotonic() + EVICTABLE_S
    while left and monotonic() < end:
        await here.while_waiting(LOOK_S)
        left = await asyncio.to_thread(_without_ttl, here)
    if not left:
        return []
    return [f"evictable: {EVICTABLE_S:g} s after the end {len(left)} clean states have no time to live: {left[:5]}"]


def _without_ttl(here: Arena) -> list[str]:
    with suppress(redis.RedisError), here.redis(seconds=10) as raw:
        names: list[Any] = [*raw.scan_iter(match=here.keys.every_state(), count=1000)]
        with raw.pipeline(transaction=False) as together:
            for name in names:
                together.pttl(name)
            return sorted(name.decode() for name, ttl in zip(names, together.execute(), strict=True) if ttl == -1)
    return ["no answer"]
