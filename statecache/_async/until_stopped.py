"""From a signal to a good end: an agent's loop that stops taking work, ends its step, and goes down with the client.

async with AsyncStateCache() as cache, cache.until_stopped(drain=10) as told:
    while not told.stopping:
        job = await next_job()
        if job is None:
            await told.wait(1.0)                      # wakes at once when it is told
        else:
            await cache.step(…)                       # ends, whatever arrives meanwhile

told       SIGTERM, SIGINT or `stop()`: `stopping` is true, `wait` returns; nothing else happens
the block ends   by itself, or with an error: the client is closed, with `drain` seconds to go down well, and
                 `left` says what was left
told twice       the second signal ends the block at once, wherever it is, and the process with status 128 + signal;
                 leases are given back all the same, where Redis answers
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from statecache._signals import SIGNALS, AsyncStopRequest
from statecache.core.drain import checked_drain

if TYPE_CHECKING:
    from statecache.model import DrainReport


class AsyncUntilStopped:
    """A block of an agent's work until it is told to stop; the client is closed at its end."""

    def __init__(
        self, close: Callable[..., Awaitable[DrainReport]], check_place: Callable[[], None], *, drain: float,
        signals: Sequence[int] = SIGNALS,
    ) -> None:  # fmt: skip
        self._close = close
        self._check_place = check_place
        self._drain = checked_drain(drain)
        self._signals = tuple(signals)
        self._told = AsyncStopRequest()
        self._left: DrainReport | None = None

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop: take no more work."""
        return self._told.told

    @property
    def signal(self) -> int | None:
        """The signal that told it to stop, if it was one."""
        return self._told.signal

    @property
    def left(self) -> DrainReport | None:
        """What was left at the block's end; None before, and where a second signal cut it short."""
        return self._left

    @property
    def status(self) -> int:
        """An exit status for the process: 0 where nothing was left, else 1."""
        return 1 if self._left else 0

    def stop(self) -> None:
        """Tell it to stop; any task or thread may call it."""
        self._told.stop()

    async def wait(self, seconds: float) -> bool:
        """Wait for at most that many seconds, and return whether it was told to stop."""
        return await self._told.wait(seconds)

    async def __aenter__(self) -> Self:
        self._check_place()
        self._told.listen(self._signals)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            await self._end(error)
        finally:
            self._told.restore()

    async def _end(self, error: BaseException | None) -> None:
        """Close the client; a second signal, in the block or here, cuts everything short but the closing."""
        if not self._told.hurried:
            try:
                self._left = await self._close(drain=self._drain)
            except BaseException:  # a second signal came meanwhile, or it is passed on
                if not self._told.hurried:
                    raise
            else:
                return
        await self._told.seen_through(self._close())
        raise SystemExit(128 + (self.signal or 0)) from error
