"""The wait for what arrives on a connection to Redis that is shared: one listens, and others read for themselves.

A thread that waits for an answer takes it off the connection itself, where nobody else does (`Threads.lead`). The
thread that listens would be woken by every such answer, only to find it taken, and contend for the interpreter with the
one that has it: a read took a fifth longer. So it is held off while another thread reads.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Any
from weakref import finalize

from statecache.concurrency.sockets import thread_arrived

_ARRIVED = 1
"""EPOLLIN, which not every system has."""


class TaskArrivals:
    """The wait of a connection's one task, which is held off by nobody."""

    __slots__ = ()

    def __init__(self, connection: Any) -> None:
        """Take a connection, which its task waits on in reading."""

    async def wait(self, seconds: float, turn: Any) -> bool:  # noqa: ARG002
        """Return True: the task waits in reading."""
        return True

    def close(self) -> None:
        """Do nothing."""


class ThreadArrivals:
    """The wait of a connection's listening thread, which others hold off while they read.

    It waits on a twin of the socket's descriptor, which shows that the connection was closed by another thread. Whoever
    was interrupted before `go_on` holds it off no longer than until it waits again. Where no epoll is to be had it is
    woken by whatever arrives.
    """

    __slots__ = ("__weakref__", "_close", "_connection", "_poll", "_twin")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._poll: Any = None
        self._twin = -1
        self._close: Any = None

    async def wait(self, seconds: float, turn: Any) -> bool:
        """Wait until data or the end has arrived that no other thread reads; return whether it has."""
        return await thread_arrived(self._connection, seconds, turn, self._polled)

    def _polled(self, line: socket.socket, seconds: float) -> bool:
        if self._poll is not None:
            self.go_on()
        elif not self._begun(line):
            return bool(select.select([line], [], [], seconds)[0])
        return bool(self._poll.poll(seconds, 1))

    def _begun(self, line: socket.socket) -> bool:
        """Make what is waited on; return False where the system has none, or none to spare."""
        if not hasattr(select, "epoll"):
            return False
        try:
            poll, twin = select.epoll(), os.dup(line.fileno())
        except OSError:
            return False
        self._close = finalize(self, os.close, twin)
        self._close.atexit = False
        try:
            poll.register(twin, _ARRIVED)
        except OSError:
            self._close()
            return False
        self._twin, self._poll = twin, poll
        return True

    def hold_off(self) -> None:
        """Have the listener not woken by what arrives; only by the end of the connection on this side."""
        self._want(0)

    def go_on(self) -> None:
        """Have it woken again, by what has arrived meanwhile too."""
        self._want(_ARRIVED)

    def _want(self, events: int) -> None:
        if self._poll is not None:
            with contextlib.suppress(OSError, ValueError):  # to be woken for nothing costs time alone
                self._poll.modify(self._twin, events)

    def close(self) -> None:
        """Part with a connection that nobody uses any more: a forked child would hold its parent's open."""
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.close()
        if self._close is not None:
            self._close()
