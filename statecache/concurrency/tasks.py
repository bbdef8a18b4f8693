"""Waiting for the tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from inspect import isawaitable
from typing import Any, TypeVar

import psycopg

from statecache.concurrency.addresses import task_reached
from statecache.concurrency.arrivals import TaskArrivals
from statecache.concurrency.batching import TaskBatcher
from statecache.concurrency.blocking import refused
from statecache.concurrency.bounding import SeveredConnection, TaskTimeout, task_opened
from statecache.concurrency.computing import task_computed
from statecache.concurrency.exchanging import rows_of, sent
from statecache.concurrency.interface import Background, Beside, Concurrency, Slots
from statecache.concurrency.lateness import Lateness, unanswered
from statecache.concurrency.slots import TaskSlots
from statecache.concurrency.sockets import (
    TaskDeadline,
    TaskReceiving,
    TaskSending,
    TaskSocketTurn,
    task_dialing,
    task_disown,
    task_sever,
    task_wake,
)
from statecache.concurrency.waking import TaskSignal
from statecache.errors import UsageError

T = TypeVar("T")
_unfinished: set[asyncio.Task[Any]] = set()
_JOIN_S = 5.0
"""How long the end of a thread is waited for, in seconds."""


class Tasks(Concurrency):
    """Waiting for the tasks of an event loop."""

    plain = False
    slots = TaskSlots
    signal = TaskSignal
    batcher = TaskBatcher
    timeout = TaskTimeout
    turn = TaskSocketTurn
    dialing = staticmethod(task_dialing)
    deadline = TaskDeadline
    sending = TaskSending
    receiving = TaskReceiving
    arrivals = TaskArrivals
    disown = staticmethod(task_disown)
    wake = staticmethod(task_wake)
    sever = staticmethod(task_sever)
    computed = staticmethod(task_computed)

    async def sleep(self, seconds: float) -> None:
        """Sleep for that many seconds."""
        await asyncio.sleep(seconds)

    def background(self, function: Callable[[Background], Coroutine[Any, Any, None]], *, name: str) -> Background:
        """Return a task, to be started."""
        return TaskBackground(function, name=name)

    def thread(self, function: Callable[[Background], Coroutine[Any, Any, None]], *, name: str) -> Background:
        """Return a daemon thread, to be started, with an event loop of its own."""
        return LoopInThread(function, name=name)

    async def lead(
        self,
        ear: Slots,  # noqa: ARG002
        take: Callable[[float], Coroutine[Any, Any, bool]],  # noqa: ARG002
        signal: TaskSignal,
        seconds: float,
        arrivals: TaskArrivals,  # noqa: ARG002
    ) -> bool:
        """Wait for a signal that the task which reads will set."""
        return await signal.wait(seconds)

    async def answered(self, signal: TaskSignal, seconds: float) -> None:
        """Wait for a signal that a server's answer sets; raise TimeoutError where it is not set in so many seconds."""
        async with Lateness(seconds):
            if not await signal.wait(seconds):
                raise unanswered(seconds)

    async def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something short, which runs to its end even if the caller is cancelled meanwhile."""
        return await asyncio.shield(_kept(work))

    async def beside(self, work: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
        """Start a task that runs to its end by itself, and wait for it for at most that many seconds."""
        await asyncio.wait([_kept(work())], timeout=seconds)

    async def called(self, value: Any) -> Any:
        """Return the result of a user's function, which may be asynchronous."""
        return await value if isawaitable(value) else value

    def place(self) -> object:
        """Return the running loop."""
        return _running_loop()

    def runner(self) -> object:
        """Return the current task."""
        return asyncio.current_task(_running_loop())

    async def postgres(self, url: str, options: dict[str, Any], seconds: float | None) -> Any:
        """Open a connection to Postgres."""
        return await task_opened(lambda: task_reached(SeveredConnection.connect, url, options), seconds)

    def spelled(self, connection: Any, text: str, parameters: Mapping[str, Any]) -> bytes:
        """Return statements with parameters in their text."""
        return psycopg.AsyncClientCursor(connection).mogrify(text, parameters).encode()

    async def rows(self, connection: Any, text: bytes, beside: Beside | None) -> list[list[tuple[Any, ...]]]:
        """Run statements that are spelled out in one exchange with Postgres, and return the rows of each."""
        answer = sent(connection, text)
        if beside is not None:
            await beside()
        return rows_of(connection, await connection.wait(answer))

    def dialect(self) -> Any:
        """Return redis-py's module of asynchronous connections."""
        from redis.asyncio import connection

        return connection

    def line(self, connection: Any) -> Any:
        """Return the connection: its methods are coroutines."""
        return connection

    def stay_closed(self, connection: Any) -> None:
        """Have the connection not opened again by redis-py."""
        connection.connect_check_health = _refused

    def pass_on_invalidations(self, connection: Any) -> None:
        """Have pushes of invalidated keys returned as messages."""
        connection._parser.set_invalidation_push_handler(_passed_on)


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop; raise UsageError where there is none, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        hint = "Call it from a task of asyncio; elsewhere, in trio's threads for instance, use a StateCache."
        raise UsageError("it needs an event loop of asyncio, and none runs here", hint=hint) from None


async def _refused(**_: object) -> None:
    refused()


async def _passed_on(message: Any) -> Any:
    return message


def _kept(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.ensure_future(work)
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    return task


class TaskBackground:
    """A function that runs as a task of its own, once started, until it ends or is stopped."""

    def __init__(self, function: Callable[[Background], Coroutine[Any, Any, None]], *, name: str) -> None:
        self._function, self._name = function, name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Have the function run from now on."""
        loop = _running_loop()
        self._task = loop.create_task(self._function(self), name=self._name)

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


class LoopInThread:
    """An asynchronous function that runs in a daemon thread, once started, in an event loop of its own, until it ends.

    Whoever blocks the caller's loop does not hold it up; the function looks by itself whether it is to stop.
    """

    def __init__(self, function: Callable[[Background], Coroutine[Any, Any, None]], *, name: str) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(function(self)), name=name, daemon=True)

    def start(self) -> None:
        """Have the function run from now on."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the function still runs."""
        return self._thread.is_alive()

    def let_go(self) -> None:
        """Do nothing: the function looks by itself whether it is to stop."""

    async def stop(self, seconds: float = _JOIN_S) -> None:
        """Wait for the function's end, for at most that many seconds."""
        if self.alive:
            await asyncio.to_thread(self._thread.join, seconds)
