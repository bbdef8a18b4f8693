"""A lock as it stands in Redis, for stories that look at it, wait for it, or put somebody else there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from statecache import AsyncStateCache, Token
from statecache import leases as rules
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache.leases import lease_of, queue_of

KEY = "runs/42"
LONG = 60.0
NEVER = 10**15
"""Milliseconds of the server's clock that are far in the future."""


class Place:
    """A lock's lease and queue as they stand in Redis."""

    def __init__(self, redis_raw: Any, keys: KeySpace, key: str = KEY) -> None:
        self.redis, self.key, shard = redis_raw, key, keys.shard(key)
        self.leases, self.waiters, self.meta = keys.leases(shard), keys.waiters(shard), keys.meta(shard)

    def lease(self) -> Any:
        """Return the lock's lease, or None."""
        value = self.redis.hget(self.leases, self.key)
        return value and lease_of(self.key, value)

    def queue(self) -> list[Any]:
        """Return those who wait, in order."""
        return queue_of(self.redis.hget(self.waiters, self.key) or b"")

    def put(self, *, token: str, until: int, request: str = "somebody") -> None:
        """Write a lease into Redis, as of another holder."""
        text = f"token={token} until={until} ttl=30000 since=1 request={request} holder=elsewhere:1"
        self.redis.hset(self.leases, self.key, text)

    def put_first(self, *, until: int, request: str = "nobody", ttl: int = 30_000) -> None:
        """Put a waiter who will never come first in the queue."""
        behind = self.redis.hget(self.waiters, self.key) or b""
        line = f"{request} until={until} ttl={ttl} since=1 holder=elsewhere:2\n".encode()
        self.redis.hset(self.waiters, self.key, line + behind)

    async def until_waiting(self, count: int) -> None:
        """Wait until that many stand in the queue."""
        async with asyncio.timeout(LONG):
            while len(self.queue()) != count:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def until_prolonged(self, since_ms: int) -> None:
        """Wait until the lease's deadline is later than that moment."""
        await self.held_until(lambda: self.lease().until_ms > since_ms)

    async def held_until(self, told: Callable[[], bool]) -> None:
        """Wait until the condition holds; fail as soon as the lease has run out, for then nobody renews it any more."""
        async with asyncio.timeout(LONG):
            while not told():
                until_ms, (seconds, micros) = self.lease().until_ms, self.redis.time()
                assert seconds * 1000 + micros // 1000 <= until_ms, "the lease was not renewed in time"
                await asyncio.sleep(0)


@pytest.fixture
def place(redis_raw: Any, keys: KeySpace) -> Place:
    """The place of the lock that the stories are about."""
    return Place(redis_raw, keys)


@pytest.fixture
def nobody_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters only wait for their call: neither time nor the holder's deadline has them ask."""
    monkeypatch.setattr(rules, "ASK_S", 1000.0)


async def until_calm(client: AsyncStateCache) -> None:
    """Wait until the client has waiters and all of them wait for their call alone, with no poll due soon."""
    async with asyncio.timeout(LONG):
        while not (found := client.runtime.leases.waiting) or not all(  # noqa: ASYNC110
            60 < one.ask_at - monotonic() < inf for one in found
        ):
            await asyncio.sleep(0)


async def entered(client: AsyncStateCache, key: str = KEY, **more: Any) -> Token:
    """Take and release the lock once; return the token that it had."""
    async with client.lock(key, **more) as lease:
        return lease.token
