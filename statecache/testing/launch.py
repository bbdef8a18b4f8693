"""A launcher that becomes another program, which then dies together with the process that started it.

Run by path, in a bare interpreter, and it imports nothing of ours:

    python -I -S launch.py DEATH_SIGNAL PARENT_PID UID GID PROGRAM [ARGUMENT …]

A UID below zero keeps the user. The death signal is set here, after the change of user (which would clear it) and in a
process of its own: the same done between fork and exec of a threaded interpreter is unsafe. Where the system knows no
death signal, the next start clears up (see `leftovers.py`).
"""

from __future__ import annotations

import os
import signal
import sys

try:  # now: after the change of user, the interpreter's own folder may be closed to us
    import ctypes
except ImportError:  # an interpreter built without it: the next start clears up
    ctypes = None  # type: ignore[assignment]

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become the program, or exit with 126; never return."""
    death_signal, parent, uid, gid = (int(text) for text in arguments[:4])
    command = arguments[4:]
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if uid >= 0:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        if sys.platform == "linux":
            _die_with_the_parent(death_signal)
        if os.getppid() != parent:
            os._exit(126)
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error}\n")
        sys.stderr.flush()
        os._exit(126)


def _die_with_the_parent(death_signal: int) -> None:
    if ctypes is not None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(death_signal), 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
