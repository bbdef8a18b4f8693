"""What differs in kind between tasks and threads, in pairs: the asynchronous one has the prefix, the other has not.

The generated mirror drops the prefix, so code in `_async` that uses these reads the same on both sides.

* `async_timeout`, `async_opened` and `async_severed` bound what is done with Postgres; for Redis see `_sockets`.
* `AsyncSlots` is a counting semaphore, first come first served, with a timeout.
* `AsyncSignal` is an event, `AsyncBackground` a task or daemon thread that runs until stopped, `AsyncThread` a daemon
  thread on both sides.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any, TypeVar

from statecache._batching import AsyncBatcher, AsyncRequest, Batcher, Request
from statecache._bounding import async_opened, async_severed, async_timeout, opened, severed, timeout
from statecache._slots import AsyncSlot, AsyncSlots, Slot, Slots
from statecache._sockets import (
    AsyncSocketTurn,
    SocketTurn,
    async_deadline,
    async_dialing,
    async_disown,
    async_readable,
    async_receiving,
    async_sending,
    async_wake,
    deadline,
    dialing,
    disown,
    is_buffered,
    readable,
    receiving,
    sending,
    unread_bytes,
    wake,
)
from statecache._waking import AsyncSignal, Signal
from statecache.clock import monotonic, sleep

T = TypeVar("T")
_unfinished: set[asyncio.Task[Any]] = set()
_reading: set[int] = set()
"""The threads that are reading for themselves and others at the moment."""
_JOIN_S = 5.0
"""How long the end of a thread is waited for, in seconds."""


async def async_lead(
    ear: AsyncSlots,  # noqa: ARG001
    take: Callable[[float], Awaitable[bool]],  # noqa: ARG001
    signal: AsyncSignal,
    seconds: float,
) -> bool:
    """Wait for a signal that the task which reads will set, and return whether it was set."""
    return await signal.wait(seconds)


def lead(ear: Slots, take: Callable[[float], bool], signal: Signal, seconds: float) -> bool:
    """Wait for a signal, reading for all waiters meanwhile unless another thread does; return whether it was set.

    To be woken by a thread that reads costs two changes of threads, often more than the answer itself. `take` takes one
    message off the connection, waits for at most so many seconds for it, and says whether more are there already. A
    signal handler that has interrupted its thread in reading waits for nothing: nobody reads before it returns.
    """
    end, me = monotonic() + seconds, threading.get_ident()
    while not signal.is_set and me not in _reading and (left := end - monotonic()) > 0:
        reads = ear.acquire_now()
        if reads is None:
            return signal.wait(left)
        try:
            _reading.add(me)
            while take(max(end - monotonic(), 0.001)) or not (signal.is_set or monotonic() >= end):
                pass
        finally:
            _reading.discard(me)
            reads.release()
    return signal.is_set


async def async_sleep(seconds: float) -> None:
    """Sleep for that many seconds."""
    await asyncio.sleep(seconds)


async def async_finished(work: Coroutine[Any, Any, T]) -> T:
    """Wait for something short, which runs to its end even if the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    return await asyncio.shield(task)


def finished(value: T) -> T:
    """Return the value: nobody cancels a thread."""
    return value


async def async_beside(work: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
    """Start work that runs to its end by itself, and wait for it for at most that many seconds."""
    task = asyncio.ensure_future(work())
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    await asyncio.wait([task], timeout=seconds)


def beside(work: Callable[[], object], seconds: float) -> None:
    """Start work in a thread, and wait for it for at most that many seconds."""
    thread = threading.Thread(target=work, name="statecache-beside", daemon=True)
    thread.start()
    thread.join(seconds)


async def async_called(value: Awaitable[T] | T) -> T:
    """Return the result of a user's function, which may be asynchronous."""
    if isawaitable(value):
        return await value
    return value


def called(value: T) -> T:
    """Return the result of a user's function; raise TypeError where the function is asynchronous."""
    if isawaitable(value):
        close = getattr(value, "close", None)
        if close is not None:
            close()
        raise TypeError("StateCache takes plain functions; use AsyncStateCache for an async one")
    return value


def async_place() -> object:
    """Return what a client is bound to: the running loop."""
    return asyncio.get_running_loop()


def place() -> object:
    """Return what a client is bound to: nothing, for threads may share one."""
    return None


def async_runner() -> object:
    """Return the current task."""
    return asyncio.current_task()


def runner() -> object:
    """Return the current thread."""
    return threading.current_thread()


class AsyncBackground:
    """A function that runs as a task of its own, once started, until it ends or is stopped.

    It is given this object: whoever starts one keeps it first, and the function goes on only as long as it is the one
    that is kept. So none is left that nobody knows of, wherever its start was interrupted.
    """

    def __init__(self, function: Callable[[AsyncBackground], Coroutine[Any, Any, None]], *, name: str) -> None:
        self._function, self._name = function, name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Have the function run from now on."""
        self._task = asyncio.create_task(self._function(self), name=self._name)

    @property
    def alive(self) -> bool:
        """Whether the function still runs."""
        return self._task is not None and not self._task.done()

    def let_go(self) -> None:
        """Have the task cancelled by its loop, from wherever this is called."""
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def stop(self, seconds: float = _JOIN_S) -> None:  # noqa: ARG002
        """Cancel the task and wait for its end; raise its error, if it had one."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()


class Background:
    """A function that runs as a daemon thread, once started, until it ends; it looks by itself whether it is to stop.

    A signal handler that raises may interrupt the start of a thread that runs nonetheless.
    """

    def __init__(self, function: Callable[[Any], None], *, name: str) -> None:
        self._thread = threading.Thread(target=function, args=(self,), name=name, daemon=True)

    def start(self) -> None:
        """Have the function run from now on."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the function still runs."""
        return self._thread.is_alive()

    def let_go(self) -> None:
        """Do nothing: the function looks by itself whether it is to stop."""

    def stop(self, seconds: float = _JOIN_S) -> None:
        """Wait for the function's end, for at most that many seconds."""
        if self.alive and threading.current_thread() is not self._thread:
            self._thread.join(seconds)


class AsyncThread:
    """An asynchronous function that runs in a daemon thread, once started, in an event loop of its own, until it ends.

    Whoever blocks the caller's loop does not hold it up; the function looks by itself whether it is to stop.
    """

    def __init__(self, function: Callable[[AsyncThread], Coroutine[Any, Any, None]], *, name: str) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(function(self)), name=name, daemon=True)

    def start(self) -> None:
        """Have the function run from now on."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the function still runs."""
        return self._thread.is_alive()

    async def stop(self, seconds: float = _JOIN_S) -> None:
        """Wait for the function's end, for at most that many seconds."""
        if self.alive:
            await asyncio.to_thread(self._thread.join, seconds)


class Thread(Background):
    """A function that runs in a daemon thread, once started, until it ends."""


__all__ = [
    "AsyncBackground",
    "AsyncRequest",
    "AsyncSignal",
    "AsyncSlot",
    "AsyncSlots",
    "AsyncSocketTurn",
    "AsyncThread",
    "AsyncBatcher",
    "Background",
    "Request",
    "Signal",
    "Slot",
    "Slots",
    "SocketTurn",
    "Thread",
    "Batcher",
    "async_beside",
    "async_called",
    "async_deadline",
    "async_dialing",
    "async_disown",
    "async_finished",
    "async_lead",
    "async_opened",
    "async_place",
    "async_readable",
    "async_receiving",
    "async_runner",
    "async_sending",
    "async_severed",
    "async_sleep",
    "async_timeout",
    "async_wake",
    "beside",
    "called",
    "deadline",
    "dialing",
    "disown",
    "finished",
    "is_buffered",
    "lead",
    "opened",
    "place",
    "readable",
    "receiving",
    "runner",
    "sending",
    "severed",
    "sleep",
    "timeout",
    "unread_bytes",
    "wake",
]
