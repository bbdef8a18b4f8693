"""Misses in tests: how their exchanges are known, states that Redis lets go, and calls that are held on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from statecache.keys import KeySpace
from tests.support.dirtiness import evict
from tests.support.fault_proxy import Fault, FaultProxy

KEY = "runs/42"
ASKS, LOOKS = b"Gives the last state of each asked key", b"Gives those of the asked keys that have a state"
"""Bytes of the statements that read states from Postgres, and that look whether there are any; and of no others."""
BEGIN, INSTALL = b"Takes hydration tokens for", b"Installs what Postgres holds"
"""Bytes of the scripts that take tokens and that use them."""
ABSENT = b"Installs that states are absent"
"""Bytes of the script that needs none."""


def evict_clean(redis_raw: Any, keys: KeySpace, key: str = KEY) -> None:
    """Evict a clean state, as Redis does for room."""
    assert evict(redis_raw, keys, key)


async def as_coroutine(call: Awaitable[Any]) -> Any:
    """Return what a call gives, of either client."""
    return await call


async def hold_at(proxy: FaultProxy, at: bytes, call: Awaitable[Any]) -> tuple[Fault, asyncio.Task[Any]]:
    """Begin a call, wait until its exchange with these bytes has been answered, and keep the answer from it."""
    fault = proxy.arm("hold_reply", at=at)
    task = asyncio.create_task(as_coroutine(call))
    await fault.wait()
    return fault, task
