"""A long computation beside an event loop: in a thread, so that other tasks, leases and connections go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Generic, TypeVar

from statecache.clock import monotonic
from statecache.concurrency.slots import TaskSlot, TaskSlots
from statecache.concurrency.starting import start

T = TypeVar("T")


class _Computation(Generic[T]):
    """Work that a daemon thread does for a task. It has its turn until it ends, though nobody may wait any more."""

    def __init__(self, work: Callable[[], T], turn: TaskSlot) -> None:
        self._work = work
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self._loop.create_future()

    def run(self) -> None:
        """Do the work, in the thread, and tell the loop, which may be closed by then."""
        try:
            tell = partial(self.result.set_result, self._work())
        except Exception as error:  # whoever waits for it is told
            tell = partial(self.result.set_exception, error)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, tell)

    def _end(self, tell: Callable[[], None]) -> None:
        self._turn.release()
        if not self.result.done():
            tell()


async def task_computed(work: Callable[[], T], turns: TaskSlots, seconds: float) -> T:
    """Return what work comes to that a thread does in its turn; raise TimeoutError where all takes longer.

    A thread cannot be stopped: work that nobody waits for any more runs to its end, and the next one waits for it.
    """
    end = monotonic() + seconds
    turn = await turns.acquire(seconds)
    if turn is None:
        raise TimeoutError
    try:
        computation = _Computation(work, turn)
        start(Thread(target=computation.run, name="statecache-computation", daemon=True))
    except BaseException:  # it may be cancelled, or no thread be had: the turn is given back
        turn.release()
        raise
    async with asyncio.timeout(max(end - monotonic(), 0.0)):
        return await computation.result
