"""Signals for tasks and signals for threads: the pair behind all waiting for what happens once."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class TaskSignal:
    """A signal that is set once and wakes whoever waits for it."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[asyncio.Future[bool]] = []  # an Event beneath a timeout takes three times as long

    def set(self) -> None:
        """Wake all waiters, those of now and later ones."""
        self._set = True
        for waiter in self._waiting:
            _end_wait(waiter, True)

    async def wait(self, seconds: float) -> bool:
        """Wait for at most that many seconds, and return whether the signal was set."""
        if self._set:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(max(seconds, 0.0), _end_wait, waiter, False)
        self._waiting.append(waiter)
        try:
            return await waiter or self._set
        finally:
            self._waiting.remove(waiter)
            timer.cancel()


def _end_wait(waiter: asyncio.Future[bool], was_set: bool) -> None:
    if not waiter.done():
        waiter.set_result(was_set)


class ThreadSignal:
    """A signal that is set once and wakes whoever waits for it."""

    def __init__(self) -> None:
        self._gate = threading.Lock()  # an Event takes three times as long
        self._gate.acquire()
        self._set = False

    @property
    def is_set(self) -> bool:
        """Whether the signal was set."""
        return self._set

    def set(self) -> None:
        """Wake all waiters, those of now and later ones."""
        self._set = True
        with contextlib.suppress(RuntimeError):  # it was set before
            self._gate.release()

    async def wait(self, seconds: float) -> bool:
        """Wait for at most that many seconds, and return whether the signal was set."""
        if not self._set and self._gate.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX)):
            with contextlib.suppress(RuntimeError):
                self._gate.release()
        return self._set
