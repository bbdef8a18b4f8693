"""What stories of the near cache wait for: until something is kept here, until somebody's write has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from statecache import AsyncStateCache
from tests.support.polling import pause

KEY = "runs/1"
LIMIT_S = 20.0


async def until(holds: Callable[[], Any]) -> None:
    """Give way until the condition holds."""
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await pause()


async def reads(client: AsyncStateCache, value: Any, key: str = KEY) -> None:
    """Read until the value is there."""
    async with asyncio.timeout(LIMIT_S):
        while (state := await client.get(key)) is None or state.value != value:
            await pause()


async def kept(client: AsyncStateCache, key: str = KEY) -> None:
    """Read until the near cache answers for the key."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            hits = client.near.hits
            await client.get(key, read="local")
            if client.near.hits > hits:
                return
            await pause()
