"""Deleting states whose end has come, beside the flush, by commits of a client of its own.

Nobody waits for it: from its end on no read finds a state. What goes wrong is tried again a second later, for longer
and longer. A worker that drains begins none of these commits any more, and flushes those that it had begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from statecache.backoff import pause_s
from statecache.clock import monotonic as real_monotonic
from statecache.core.commit.endings import delete_ended
from statecache.core.runtime import Runtime
from statecache.errors import StateCacheError
from statecache_workers.logs import crash, warn

if TYPE_CHECKING:
    from statecache.settings import Settings

ROUND_S = 1.0
PAUSE_MAX_S = 30.0


class Expiry:
    """The deleter of what has ended in one worker's shards."""

    def __init__(self, settings: Settings, *, monotonic: Callable[[], float] = real_monotonic) -> None:
        more = {"near_bytes_max": 0, "redis_connections_max": 2, "postgres_connections_max": 2, "durability": "memory"}
        self._settings = settings.model_copy(update=more)
        self._monotonic = monotonic
        self._runtime: Runtime | None = None
        self._task: asyncio.Task[None] | None = None
        self._next = monotonic()
        self._failures = 0
        self._ending = self._leaving = False
        self.deleted = 0
        """How many states it has deleted."""

    def ask(self, shards: Sequence[int]) -> None:
        """Start to delete what has ended in these shards, if it is time and nothing is under way."""
        if shards and self._monotonic() >= self._next and not (self.busy or self._ending):
            self._next = self._monotonic() + ROUND_S
            self._task = asyncio.create_task(self._delete(shards), name="expiry")

    @property
    def busy(self) -> bool:
        """Whether commits of its own may be under way."""
        return self._task is not None and not self._task.done()

    def end(self) -> None:
        """Begin nothing any more; what is under way ends with the few hundred states that it is at."""
        self._ending = True

    def leave_server(self) -> None:
        """Close the connections that stand before anything else is begun: they may lead to another server."""
        self._leaving = True

    async def _delete(self, shards: Sequence[int]) -> None:
        try:
            if self._runtime is None:
                self._runtime = Runtime(self._settings)
            if self._leaving:
                self._leaving = False
                await self._runtime.redis.pool.drop_idle(all_of_them=True)
            self.deleted += await delete_ended(
                self._runtime, shards, seconds=self._settings.timeout_s, enough=lambda: self._ending
            )
            self._failures = 0
        except Exception as error:  # the flush goes on, whatever is wrong here
            self._failures += 1
            self._next = self._monotonic() + pause_s(self._failures, ROUND_S, PAUSE_MAX_S)
            if isinstance(error, StateCacheError):
                warn("not_expired", detail=str(error).partition("\n")[0])
            else:
                crash("not_expired")

    async def stop(self) -> None:
        """End what is under way and close the connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._runtime is not None:
            await self._runtime.close()
