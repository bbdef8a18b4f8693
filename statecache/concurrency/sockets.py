"""A connection to Redis as tasks use it, and as threads do, in pairs.

* `TaskDeadline` bounds an exchange. The synchronous twin can only bound each read of the socket.
* `TaskSending` and `TaskReceiving` bound the two directions of a connection that is used in both at once.
* `thread_readable` waits until something has arrived, `task_wake` and `thread_wake` end such a wait.
* `task_sever` and `thread_sever` end what is under way on a connection, whose user then closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from ssl import SSLSocket
from typing import Any

from statecache.clock import monotonic
from statecache.concurrency.lateness import Lateness, TooLittleTime, unanswered
from statecache.concurrency.slots import ThreadSlot, ThreadSlots

_RECORD_S = 0.05
"""How long the rest of a TLS record is waited for at once, in seconds, while nobody can send."""


class TaskDeadline:
    """A bound of so many seconds on one exchange on a connection; TimeoutError past it, `late_s` seconds late."""

    __slots__ = ("_timeout", "late_s")

    def __init__(self, connection: Any, seconds: float) -> None:  # noqa: ARG002
        self._timeout = asyncio.timeout(seconds)
        self.late_s = 0.0

    async def __aenter__(self) -> TaskDeadline:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        timeout = self._timeout
        del self._timeout  # it names the task, which keeps its error, and that the frames and values where this stands
        if timeout.expired() and (end := timeout.when()) is not None:
            self.late_s = asyncio.get_running_loop().time() - end
        await timeout.__aexit__(*exc_info)


class _Exchange:
    """The block of an exchange whose bound is set on its socket."""

    __slots__ = ()
    late_s = 0.0

    async def __aenter__(self) -> _Exchange:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None


_exchange = _Exchange()


def thread_deadline(connection: Any, seconds: float) -> _Exchange:
    """Bound every read of one exchange on a connection to that many seconds.

    It is generous by up to two hundredths, so that exchanges with about the same bound need not set it anew.
    """
    line = connection._sock
    if line is not None:
        present = line.gettimeout()
        if present is None or not seconds <= present <= seconds * 1.02:
            line.settimeout(max(seconds * 1.01, 0.001))
    return _exchange


class TaskSocketTurn:
    """A turn that nobody waits for: one loop runs all the tasks that use a connection."""

    __slots__ = ()


class ThreadSocketTurn:
    """Whose turn it is to use a TLS connection's socket.

    A plain socket takes one thread that reads beside one that writes; OpenSSL's state behind a TLS socket takes one
    thread at all. A thread that is interrupted, by a signal handler that raises, keeps no turn.
    """

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots = ThreadSlots(1)

    async def take(self, seconds: float) -> ThreadSlot | None:
        """Wait for the turn and return it, to be released; return None where others do not finish with it in time."""
        return await self._slots.acquire(seconds)


class TaskSending(TaskDeadline):
    """A bound on sending a request on a connection whose answer another task reads."""

    __slots__ = ()

    def __init__(self, connection: Any, seconds: float, turn: TaskSocketTurn) -> None:  # noqa: ARG002
        super().__init__(connection, seconds)


def thread_sending(connection: Any, seconds: float, turn: ThreadSocketTurn) -> AbstractAsyncContextManager[Any]:
    """Bound the sending of a request whose answer another thread reads; over TLS, take turns with the readers."""
    return _InTurn(connection, seconds, turn) if _is_tls(connection) else thread_deadline(connection, seconds)


class TaskReceiving(TaskSending):
    """A bound on the wait for what arrives on a connection on which another task sends."""

    __slots__ = ()


def thread_receiving(connection: Any, seconds: float, turn: ThreadSocketTurn) -> AbstractAsyncContextManager[Any]:
    """Bound the wait for what arrives on a connection; other threads may send meanwhile, over TLS too."""
    return _Arrived(connection, seconds, turn) if _is_tls(connection) else thread_deadline(connection, seconds)


class _InTurn:
    """One thread's use of a TLS socket; TimeoutError where other threads do not finish with theirs."""

    __slots__ = ("_connection", "_seconds", "_slot", "_turn")

    def __init__(self, connection: Any, seconds: float, turn: ThreadSocketTurn) -> None:
        self._connection = connection
        self._seconds = seconds
        self._turn = turn
        self._slot: ThreadSlot | None = None

    async def __aenter__(self) -> None:
        await self._begin(self._seconds)

    async def _begin(self, seconds: float) -> None:
        self._slot = await self._turn.take(self._seconds)
        if self._slot is None:
            raise TimeoutError("another thread is using the connection")
        thread_deadline(self._connection, seconds)

    async def __aexit__(self, *exc_info: object) -> None:
        if self._slot is not None:
            self._slot.release()


class _Arrived(_InTurn):
    """The same for reading what has arrived, which is waited for beforehand; TimeoutError where nothing arrives."""

    __slots__ = ()

    async def __aenter__(self) -> None:
        if not await thread_readable(self._connection, self._seconds, self._turn):
            raise TimeoutError("nothing came")
        await self._begin(min(self._seconds, _RECORD_S))


def _is_tls(connection: Any) -> bool:
    return isinstance(connection._sock, SSLSocket)


@contextlib.asynccontextmanager
async def task_dialing(connection: Any, seconds: float) -> AsyncIterator[None]:
    """Bound the opening of a connection to Redis to that many seconds; its single steps are unbounded.

    Beneath Python 3.12 the bound that redis-py sets on a step loses a cancellation that comes as the step ends: the
    task goes on as if nobody had cancelled it. All later exchanges are bounded by `TaskDeadline` alone.
    """
    connection.socket_timeout = None
    async with Lateness(seconds):
        yield


class ThreadDialing:
    """A bound of so many seconds on every step of the opening of a connection to Redis."""

    __slots__ = ("_seconds",)

    def __init__(self, connection: Any, seconds: float) -> None:
        connection.socket_timeout = self._seconds = seconds

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        late = unanswered(self._seconds)
        if isinstance(late, TooLittleTime) and error is not None and "imeout" in type(error).__name__:
            raise late from error


def task_disown(connection: Any) -> None:
    """Do nothing: what an asyncio connection does to close would reach into the parent's event loop."""


def thread_disown(connection: Any) -> None:
    """Close a forked child's copy of its parent's connection to Redis; the parent's stays as it is."""
    connection.disconnect()


def task_wake(connection: Any) -> None:
    """Do nothing: a task that waits on a connection to Redis is cancelled."""


def thread_wake(connection: Any) -> None:
    """Wake the thread that waits on a connection to Redis, which finds it closed by the other side."""
    line = connection._sock
    with contextlib.suppress(OSError):
        if line is not None:
            line.shutdown(socket.SHUT_RDWR)


async def task_sever(line: Any) -> None:
    """Close a connection to Redis: a task that waits on it gets an error."""
    await line.disconnect(nowait=True)


async def thread_sever(line: Any) -> None:
    """Shut the socket of a connection to Redis, which a thread that uses it closes."""
    thread_wake(line.connection)


async def thread_readable(connection: Any, seconds: float, turn: ThreadSocketTurn) -> bool:
    """Wait until data or the end has arrived on a connection to Redis, and return whether it has."""
    return await thread_arrived(connection, seconds, turn, _selected)


def _selected(line: socket.socket, seconds: float) -> bool:
    return bool(select.select([line], [], [], seconds)[0])


async def thread_arrived(
    connection: Any, seconds: float, turn: ThreadSocketTurn, waits: Callable[[socket.socket, float], bool]
) -> bool:
    """Return whether data or the end has arrived on a connection, on whose socket `waits` waits for so many seconds."""
    line = connection._sock
    if line is None or is_buffered(connection):
        return True
    try:
        if isinstance(line, SSLSocket):
            end = monotonic() + seconds
            if (slot := await turn.take(seconds)) is None:
                return False
            try:
                if line.pending():
                    return True
            finally:
                slot.release()
            seconds = max(end - monotonic(), 0.0)
        return waits(line, seconds)
    except (OSError, ValueError):  # closed meanwhile, which reading will tell
        return True


def is_buffered(connection: Any) -> bool:
    """Return whether bytes were taken off the socket that nobody has been given yet."""
    reader = connection._parser._reader
    return reader is not None and bool(reader.has_data())


def unread_bytes(connection: Any) -> int:
    """Return how many bytes were taken off the socket that nobody has been given yet."""
    reader = connection._parser._reader
    return 0 if reader is None else int(reader.len())
