"""Waiting for threads, by coroutines that never suspend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from inspect import isawaitable
from typing import Any, TypeVar

import psycopg

from statecache.clock import monotonic, sleep
from statecache.concurrency.addresses import thread_reached
from statecache.concurrency.arrivals import ThreadArrivals
from statecache.concurrency.batching import ThreadBatcher
from statecache.concurrency.blocking import BlockingPostgres, BlockingRedis, passed_on, refused
from statecache.concurrency.bounding import BoundConnection, ThreadTimeout, thread_opened
from statecache.concurrency.exchanging import rows_of, sent
from statecache.concurrency.interface import Background, Beside, Concurrency, Slots
from statecache.concurrency.lateness import unanswered
from statecache.concurrency.running import run
from statecache.concurrency.slots import ThreadSlots
from statecache.concurrency.sockets import (
    ThreadDialing,
    ThreadSocketTurn,
    thread_deadline,
    thread_disown,
    thread_receiving,
    thread_sending,
    thread_sever,
    thread_wake,
)
from statecache.concurrency.starting import start
from statecache.concurrency.waking import ThreadSignal
from statecache.errors import UsageError

T = TypeVar("T")
_reading: set[int] = set()
"""The threads that are reading for themselves and others at the moment."""
_REST_S = 0.001
"""How long the rest of a message is waited for by who waits for nothing any more, in seconds."""
_JOIN_S = 5.0
"""How long the end of a thread is waited for, in seconds."""


class Threads(Concurrency):
    """Waiting for threads: coroutines that never suspend."""

    plain = True
    slots = ThreadSlots
    signal = ThreadSignal
    batcher = ThreadBatcher
    timeout = ThreadTimeout
    turn = ThreadSocketTurn
    dialing = ThreadDialing
    deadline = staticmethod(thread_deadline)
    sending = staticmethod(thread_sending)
    receiving = staticmethod(thread_receiving)
    arrivals = ThreadArrivals
    disown = staticmethod(thread_disown)
    wake = staticmethod(thread_wake)
    sever = staticmethod(thread_sever)
    line = BlockingRedis

    async def sleep(self, seconds: float) -> None:
        """Block the thread for that many seconds."""
        sleep(seconds)

    def background(self, function: Callable[[Background], Coroutine[Any, Any, None]], *, name: str) -> Background:
        """Return a daemon thread, to be started."""
        return ThreadBackground(function, name=name)

    thread = background

    async def lead(
        self, ear: Slots, take: Callable[[float], Coroutine[Any, Any, bool]], signal: ThreadSignal, seconds: float,
        arrivals: ThreadArrivals,
    ) -> bool:  # fmt: skip
        """Wait for a signal, reading for all waiters meanwhile unless another thread does.

        To be woken by a thread that reads costs two changes of threads, often more than the answer itself. `take` takes
        one message off the connection, waits for at most so many seconds for it, and says whether it took one and
        more of another is there: all that came whole is taken. The thread that listens is held off meanwhile. A signal
        handler that has interrupted its thread in reading waits for nothing: nobody reads before it returns.
        """
        end, me = monotonic() + seconds, threading.get_ident()
        while not signal.is_set and me not in _reading and (left := end - monotonic()) > 0:
            reads = ear.acquire_now()
            if reads is None:
                return await signal.wait(left)
            try:
                _reading.add(me)
                arrivals.hold_off()
                more = True
                while more or not (signal.is_set or monotonic() >= end):
                    more = await take(_REST_S if signal.is_set else max(end - monotonic(), _REST_S))
            finally:
                arrivals.go_on()
                _reading.discard(me)
                reads.release()
        return signal.is_set

    async def answered(self, signal: ThreadSignal, seconds: float) -> None:
        """Wait for a signal that a server's answer sets; raise TimeoutError where it is not set in so many seconds."""
        if not await signal.wait(seconds):
            raise unanswered(seconds)

    async def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work: nobody cancels a thread."""
        return await work

    async def beside(self, work: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
        """Start work in a thread, and wait for it for at most that many seconds."""
        thread = threading.Thread(target=lambda: run(work()), name="statecache-beside", daemon=True)
        start(thread)
        thread.join(seconds)

    async def computed(self, work: Callable[[], T], turns: ThreadSlots, seconds: float) -> T:  # noqa: ARG002
        """Return what long work comes to, which the thread does itself; raise TimeoutError where that took too long."""
        end = monotonic() + seconds
        result = work()
        if monotonic() > end:
            raise TimeoutError
        return result

    async def called(self, value: Any) -> Any:
        """Return the result of a user's function; raise UsageError where the function is asynchronous."""
        if isawaitable(value):
            close = getattr(value, "close", None)
            if close is not None:
                close()
            raise UsageError("StateCache takes plain functions, not async ones", hint="AsyncStateCache takes both.")
        return value

    def place(self) -> object:
        """Return nothing, for threads may share a client."""
        return None

    def runner(self) -> object:
        """Return the current thread."""
        return threading.current_thread()

    async def postgres(self, url: str, options: dict[str, Any], seconds: float | None) -> Any:
        """Open a connection to Postgres."""
        opened = thread_opened(lambda: thread_reached(BoundConnection.connect, url, options), seconds)
        return BlockingPostgres(opened)

    def spelled(self, connection: Any, text: str, parameters: Mapping[str, Any]) -> bytes:
        """Return statements with parameters in their text."""
        return psycopg.ClientCursor(connection.plain).mogrify(text, parameters).encode()

    async def rows(self, connection: Any, text: bytes, beside: Beside | None) -> list[list[tuple[Any, ...]]]:
        """Run statements that are spelled out in one exchange with Postgres, and return the rows of each."""
        plain = connection.plain
        answer = sent(plain, text)
        if beside is not None:
            await beside()
        return rows_of(plain, plain.wait(answer))

    def stay_closed(self, connection: Any) -> None:
        """Have the connection not opened again by redis-py."""
        connection.connect_check_health = refused

    def pass_on_invalidations(self, connection: Any) -> None:
        """Have pushes of invalidated keys returned as messages."""
        connection._parser.set_invalidation_push_handler(passed_on)

    def dialect(self) -> Any:
        """Return redis-py's module of synchronous connections."""
        from redis import connection

        return connection


class ThreadBackground:
    """A function that runs as a daemon thread, once started, until it ends; it looks by itself whether it is to stop.

    A signal handler that raises may interrupt the start of a thread that runs nonetheless.
    """

    def __init__(self, function: Callable[[Background], Coroutine[Any, Any, None]], *, name: str) -> None:
        self._thread = threading.Thread(target=lambda: run(function(self)), name=name, daemon=True)

    def start(self) -> None:
        """Have the function run from now on."""
        start(self._thread)

    @property
    def alive(self) -> bool:
        """Whether the function still runs."""
        return self._thread.is_alive()

    def let_go(self) -> None:
        """Do nothing: the function looks by itself whether it is to stop."""

    async def stop(self, seconds: float = _JOIN_S) -> None:
        """Wait for the function's end, for at most that many seconds."""
        if self.alive and threading.current_thread() is not self._thread:
            self._thread.join(seconds)
