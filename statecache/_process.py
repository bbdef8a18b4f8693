"""What belongs to one process: a forked child begins anew, for its parent's threads are not in it.

A mutex that a thread of the parent held is held for ever in the child, so a new one comes with the new beginning.
A signal handler runs in the middle of whatever its thread was doing. Where that holds a mutex, the handler is refused
what needs it: to wait would be for ever, and to go on would meet what is half done.
`pid` is this process's number, `name` its name among all hosts: to ask the system for them on every commit costs more
than to know them.
"""

from __future__ import annotations

import os
import socket
from _thread import RLock
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from statecache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


class BeginsAnew(Protocol):
    """Something that a forked child must not go on using in the state in which its parent left it."""

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Make it as good as new, with that mutex."""


_host = socket.gethostname()
pid = os.getpid()
name = f"{_host}:{pid}"
_those: WeakSet[BeginsAnew] = WeakSet()


class Mutex(RLock):  # type: ignore[misc]  # it is not final: see `Py_TPFLAGS_BASETYPE` in _threadmodule.c
    """What guards a few operations, of tasks and threads alike; it is never held while waiting.

    UsageError where the thread holds it already: a signal handler, or a finalizer, has interrupted it there.
    """

    if TYPE_CHECKING:
        _is_owned: Callable[[], bool]

    def __enter__(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_owned():
            raise UsageError(
                "a signal handler or a finalizer called it while it had interrupted it in the middle of a step",
                hint="Have the handler set a flag; `until_stopped` ends an agent on a signal.",
            )
        try:
            return self.acquire(blocking, timeout)
        except BaseException:  # a signal handler raised, perhaps when it was held already
            if self._is_owned():
                self.release()
            raise


def mutex() -> AbstractContextManager[Any]:
    """Return a new mutex."""
    return Mutex()


def begins_anew_after_fork(what: BeginsAnew) -> None:
    """Have `what.begin_anew(mutex)` called in every forked child, before anything else runs there."""
    _those.add(what)


def _begin_anew() -> None:
    global pid, name
    pid = os.getpid()
    name = f"{_host}:{pid}"
    failed: BaseException | None = None
    for what in list(_those):
        try:
            what.begin_anew(mutex())
        except BaseException as error:  # whatever hindered it, the others begin anew
            failed = failed or error
    if failed is not None:
        raise failed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
