"""Being told to stop: by SIGTERM, by SIGINT, or by `stop()`; for tasks and for threads, in pairs.

The first time asks for going down, the second ends at once: it cancels the task that listens, or raises SystemExit in
the main thread. Where signals cannot be had (beside the main thread, on some systems) `stop()` is all there is. What
handled the signals before handles them again afterwards.

A signal's handler may run in the middle of anything that its thread does, so the thread's one takes no lock that this
thread may hold: it lets go of one, which whoever waits takes.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from statecache.clock import monotonic

_LOOK_S = 0.25
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT") if hasattr(signal, name))


class AsyncStopRequest:
    """A listener for signals in an event loop."""

    def __init__(self) -> None:
        self.told = self.hurried = False
        self.signal: int | None = None
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}
        self._added: set[int] = set()

    def listen(self, signals: Sequence[int]) -> None:
        """Take the signals over."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        for number in signals:
            before = signal.getsignal(number)
            try:
                self._loop.add_signal_handler(number, self._signalled, number)
                self._added.add(number)
            except (NotImplementedError, RuntimeError, ValueError):
                if not _handled(number, self._from_outside):
                    continue
            self._before[number] = before

    def restore(self) -> None:
        """Give the signals back to what handled them before."""
        for number, before in self._before.items():
            if number in self._added and self._loop is not None:
                self._loop.remove_signal_handler(number)
            _handled(number, before)
        self._before.clear()
        self._added.clear()

    def stop(self) -> None:
        """Tell the listener to stop; any thread may call it."""
        if self._loop is None or self._loop.is_closed():
            self._tell()
        else:
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self.told = True
        self._event.set()

    def _from_outside(self, number: int, frame: object) -> None:  # noqa: ARG002
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._signalled, number)

    def _signalled(self, number: int) -> None:
        if self.signal is None:
            self.signal = number
            self._tell()
        else:
            self.hurried = True
            if self._task is not None:
                self._task.cancel()

    async def wait(self, seconds: float) -> bool:
        """Wait for at most that many seconds, and return whether it was told to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._event.wait()
        return self.told

    async def seen_through(self, work: Awaitable[object]) -> None:
        """Wait for the end of something short, whatever cancels the task meanwhile."""
        task = asyncio.ensure_future(work)
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        task.result()


class StopRequest:
    """A listener for signals in the main thread."""

    def __init__(self) -> None:
        self.told = self.hurried = False
        self.signal: int | None = None
        self._gate = threading.Lock()
        self._gate.acquire()
        self._before: dict[int, Any] = {}

    def listen(self, signals: Sequence[int]) -> None:
        """Take the signals over."""
        for number in signals:
            before = signal.getsignal(number)
            if _handled(number, self._signalled):
                self._before[number] = before

    def restore(self) -> None:
        """Give the signals back to what handled them before."""
        for number, before in self._before.items():
            _handled(number, before)
        self._before.clear()

    def stop(self) -> None:
        """Tell the listener to stop; any thread may call it."""
        self.told = True
        with suppress(RuntimeError):  # it was open already
            self._gate.release()

    def _signalled(self, number: int, frame: object) -> None:  # noqa: ARG002
        if self.signal is None:
            self.signal = number
            self.stop()
        else:
            self.hurried = True
            raise SystemExit(128 + number)

    def wait(self, seconds: float) -> bool:
        """Wait for at most that many seconds, and return whether it was told to stop.

        It wakes now and then: a signal that another thread was given is handled only when the main thread runs.
        """
        end = monotonic() + seconds
        while not self.told:
            left = end - monotonic()
            if self._gate.acquire(timeout=min(max(left, 0.0), _LOOK_S)):
                self.stop()  # for whoever waits beside
            elif left <= 0:
                break
        return self.told

    def seen_through(self, done: object) -> None:
        """Do nothing: what is short is done."""


def _handled(number: int, by: Callable[[int, Any], object] | int | None) -> bool:
    """Install a handler for a signal, and return whether that was possible."""
    if by is None:  # what is not known to Python cannot be put back
        return False
    try:
        signal.signal(number, by)
    except ValueError:  # beside the main thread
        return False
    return True
