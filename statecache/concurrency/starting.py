"""Starting threads, where a signal handler may raise meanwhile."""

from __future__ import annotations

from threading import Thread

_BROKEN = "release unlocked lock"
_NONE_LEFT = ("can't start new thread", "can't create new thread")
"""What Python says where the system gives no thread, or the interpreter is about to end."""


class NoThread(RuntimeError):
    """No thread can be started."""


def start(thread: Thread) -> None:
    """Start a thread; raise what a signal handler raised meanwhile, or NoThread where none can be started.

    `Thread.start` waits until the thread runs. A handler that raises as that wait ends has Python release a lock that
    it has not taken back yet, and a RuntimeError about that hides what was raised: Ctrl-C would look like a defect. One
    that raises just before has Python take the thread off a list on which it is no more, which is a KeyError.
    """
    try:
        thread.start()
    except (RuntimeError, KeyError) as error:
        if type(error) is RuntimeError and str(error).startswith(_NONE_LEFT):
            raise NoThread(*error.args) from None
        met = isinstance(error, KeyError) or str(error) == _BROKEN
        if not met or error.__context__ is None:
            raise
        raise error.__context__ from None
