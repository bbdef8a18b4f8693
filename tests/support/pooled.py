"""Connections to nowhere, a pool of them, and dialers whose openings wait for the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

from statecache.concurrency import TASKS, Concurrency
from statecache.core.pool import Pool
from statecache.errors import RedisUnavailable

WAIT_S = 20.0
"""How long whatever is waited for may take, in seconds."""


class Line:
    """A connection to nowhere, which knows what was done with it."""

    def __init__(self) -> None:
        self.alive = True
        self.heard_at = 0.0
        self.silent_since = -inf
        self.slot: Any = None
        self.hold: Any = None
        self.abandoned = False
        self.severed = False
        self.closed = 0

    def let_go(self) -> None:
        """Note that its client is gone."""
        self.closed += 1

    def abandon(self) -> None:
        """Note that it is a parent's."""
        self.abandoned = True

    async def close(self) -> None:
        """Close it."""
        self.alive = False
        self.closed += 1

    async def sever(self) -> None:
        """Note that whoever uses it is to stop."""
        self.severed = True

    async def end(self) -> None:
        """Close it."""
        await self.close()


class Door:
    """A dialer whose every opening waits until the test lets it in, or fails it."""

    def __init__(self) -> None:
        self.openings: list[asyncio.Future[Line]] = []

    async def __call__(self, _: float | None = None) -> Line:
        self.openings.append(asyncio.get_running_loop().create_future())
        return await self.openings[-1]

    def let_in(self, number: int) -> Line:
        """Have an opening succeed."""
        line = Line()
        self.openings[number].set_result(line)
        return line

    def fail(self, number: int, told: str = "told to") -> None:
        """Have an opening fail."""
        self.openings[number].set_exception(RedisUnavailable("connect", detail=told))


class Gate:
    """A dialer of threads, who all wait until the test lets them in."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.opened: list[Line] = []

    async def __call__(self, _: float | None = None) -> Line:
        assert self.goes_on.wait(WAIT_S)
        self.opened.append(Line())
        return self.opened[-1]


def pool_of(
    size: int, open_one: Callable[[float | None], Awaitable[Any]], *, io: Concurrency = TASKS,
    connect_timeout_s: float = 20.0,
) -> Pool[Any]:  # fmt: skip
    """Return a pool of so many connections; who waits for one in vain is told so as by Redis."""
    return Pool(
        open_one, io=io, size=size, busy=RedisUnavailable, late=_late, connect_timeout_s=connect_timeout_s,
        what="Redis",
    )  # fmt: skip


def _late(error: TimeoutError) -> RedisUnavailable:
    return RedisUnavailable("connect", detail=str(error))
