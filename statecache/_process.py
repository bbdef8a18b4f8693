"""What belongs to one process: a forked child begins anew, for its parent's threads are not in it.

A mutex that a thread of the parent held is held for ever in the child, so a new one comes with the new beginning.
`pid` is this process's number: to ask the system for it on every commit costs more than to know it.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol
from weakref import WeakSet


class BeginsAnew(Protocol):
    """This is what must not go on in a forked child as it was."""

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """This makes it as good as new, with that mutex."""


pid = os.getpid()
_those: WeakSet[BeginsAnew] = WeakSet()


def mutex() -> AbstractContextManager[Any]:
    """This makes what guards a few operations, of tasks and threads alike; it is never held while waiting."""
    return threading.Lock()


def begins_anew_after_fork(what: BeginsAnew) -> None:
    """This has `what.begin_anew(mutex)` called in every forked child, before anything else runs there."""
    _those.add(what)


def _begin_anew() -> None:
    global pid
    pid = os.getpid()
    for what in list(_those):
        what.begin_anew(mutex())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
