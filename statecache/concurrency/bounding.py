"""Bounding what is done with Postgres, for tasks and for threads: neither psycopg nor libpq gives up soon by itself.

* `TaskTimeout` and `ThreadTimeout` end an exchange after so many seconds, by shutting its socket.
* `task_opened` and `thread_opened` bounds the opening of a connection, for which libpq allows two seconds at least.
* `SeveredConnection` ends an exchange at once when who waits for it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from math import ceil, inf
from typing import Any, TypeVar
from weakref import ref

import psycopg
from psycopg.waiting import wait_async

from statecache.clock import monotonic
from statecache.concurrency.lateness import Lateness, unanswered
from statecache.concurrency.starting import NoThread, start

T = TypeVar("T")
_INTERVAL_S = 0.1
"""How often psycopg looks whether a signal has come, in seconds."""
_LOOK_S, _LOOK_MIN_S = 0.05, 0.001
"""How often a thread that waits looks at the time at least, and at most, in seconds."""


class TaskTimeout:
    """A bound on what is done with a connection to Postgres: past that many seconds its socket is shut.

    Whoever waits on the connection then gets an error, and `expired` tells that error from others. Neither a thread nor
    a task that waits for a silent server could be had back as quickly otherwise. `late_s` says how late that was.
    """

    __slots__ = ("_connection", "_seconds", "_timer", "expired", "late_s")

    def __init__(self, seconds: float, connection: Any) -> None:
        self._seconds = seconds
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self.expired, self.late_s = False, 0.0

    async def __aenter__(self) -> TaskTimeout:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self.expire)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def expire(self) -> None:
        """Shut the connection now."""
        self.expired = True
        if self._timer is not None:
            self.late_s = monotonic() - self._timer.when()
        shut(self._connection)


class SeveredConnection(psycopg.AsyncConnection[Any]):
    """A connection of tasks that is closed at once when who waits on it is cancelled.

    Psycopg would ask the server to give up, and wait up to ten seconds for both answers. Nobody else may close it
    before the exchange has let go of it: what waits refers to what libpq frees. So that is done here, without awaiting
    anything, however often the task is cancelled.
    """

    async def wait(self, gen: Any, interval: float = _INTERVAL_S, timeout: float | None = None) -> Any:
        """Wait for what a generator of psycopg waits for."""
        try:
            return await wait_async(gen, self.pgconn.socket, interval, timeout)
        except (asyncio.CancelledError, KeyboardInterrupt):
            gen.close()
            self.pgconn.finish()
            raise


class BoundConnection(psycopg.Connection[Any]):
    """A connection of threads whose waiting is bounded by whoever uses it at the moment.

    The thread that waits looks at the time itself. Another one that watched over it would have to be started for each
    exchange, which costs more than most exchanges.
    """

    bound: ref[ThreadTimeout] | None = None

    def wait(self, gen: Any, *arguments: Any, **more: Any) -> Any:
        """Wait for what a generator of psycopg waits for, as long as the bound allows."""
        bound = None if self.bound is None else self.bound()
        if bound is None:
            return super().wait(gen, *arguments, **more)
        return super().wait(bound.watched(gen), bound.look_s())


class ThreadTimeout:
    """The same bound, for a thread; it is none any more once nobody refers to it.

    Whoever was interrupted by a signal handler before the end of it has not taken it off the connection.
    """

    __slots__ = ("__weakref__", "_connection", "_end", "_outer", "_seconds", "expired", "late_s")

    def __init__(self, seconds: float, connection: Any) -> None:
        self._connection = connection
        self._seconds = seconds
        self._end = inf
        self._outer: ref[ThreadTimeout] | None = None
        self.expired, self.late_s = False, 0.0

    async def __aenter__(self) -> ThreadTimeout:
        self._end = monotonic() + self._seconds
        self._outer, self._connection.bound = self._connection.bound, ref(self)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._connection.bound = self._outer

    def look_s(self) -> float:
        """Return how often to look at the time, in seconds: in equal parts of what is left, so that none is late."""
        left = max(self._end - monotonic(), _LOOK_MIN_S)
        return left / ceil(left / _LOOK_S)

    def watched(self, gen: Any) -> Generator[Any, Any, Any]:
        """Do what a generator of psycopg does, and shut the connection when the time is up."""
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and monotonic() >= self._end:
                    self.expire()
                wanted = gen.send(ready)
        except StopIteration as ended:
            return ended.value

    def expire(self) -> None:
        """Shut the connection now."""
        self.expired = True
        shut(self._connection)


def shut(connection: Any) -> None:
    """Shut the socket of a psycopg connection; the file descriptor stays open, for it is psycopg's to close.

    Another thread may be using the connection, and libpq close the socket meanwhile. What was duplicated is the
    connection's own if the connection has the same descriptor still: it never opens a second one.
    """
    with contextlib.suppress(OSError, ValueError, psycopg.Error):
        own = connection.fileno()
        with socket.socket(fileno=os.dup(own)) as twin:
            if connection.fileno() == own:
                twin.shutdown(socket.SHUT_RDWR)


async def task_opened(open_one: Callable[[], Awaitable[T]], seconds: float | None) -> T:
    """Open a connection to Postgres; raise TimeoutError where that takes more than that many seconds."""
    async with Lateness(seconds):
        return await open_one()


def thread_opened(open_one: Callable[[], T], seconds: float | None) -> T:
    """Open a connection to Postgres; raise TimeoutError where that takes more than that many seconds.

    Libpq itself waits for two seconds at least. So another thread opens it, and closes a connection that comes too
    late. Where no thread can be started, libpq's bound is the only one.
    """
    if seconds is None:
        return open_one()
    results: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()
    late, deciding = threading.Event(), threading.Lock()

    def work() -> None:
        try:
            result: Any = open_one()
        except BaseException as error:  # whatever it is, it is raised by who waits
            result = error
        with deciding:
            results.put(result)
            if late.is_set() and hasattr(result, "close"):
                result.close()

    try:
        start(threading.Thread(target=work, name="statecache-opening", daemon=True))
    except NoThread:
        return open_one()
    try:
        found = results.get(timeout=seconds)
    except BaseException as error:  # out of time, or a signal handler raised
        with deciding:
            late.set()
            if not results.empty() and hasattr(one := results.get(), "close"):
                one.close()
        raise unanswered(seconds) if isinstance(error, queue.Empty) else error from None
    if isinstance(found, BaseException):
        raise found
    return found
