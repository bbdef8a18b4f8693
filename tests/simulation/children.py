"""Processes that are forked rather than started: a few milliseconds each, for everything is imported already.

The parent has one thread, no event loop and no connection to any server; a child has a pipe to it and tells it lines.
A child ends with its parent, whatever ends that one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

_DIES_WITH_PARENT = 1
CRASHED = 70

Report = Callable[[str], object]
Work = Callable[[Report], int]


class Child:
    """One forked process: the lines that it reports, and how it ended."""

    def __init__(self, name: str, work: Work, log: Path) -> None:
        self.name = name
        self.log = log
        self.status: int | None = None
        self.fd, theirs = os.pipe()
        self._torn = b""
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _live(work, theirs, log, parent)
        os.close(theirs)
        os.set_blocking(self.fd, False)

    def lines(self) -> list[str]:
        """Return the whole lines reported since the last call; after the last ones, `status` says how it ended."""
        told = b""
        while self.status is None:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            if not data:
                self._reap()
                break
            told += data
        *lines, self._torn = (self._torn + told).split(b"\n")
        return [line.decode() for line in lines]

    def wait_until_stopped(self) -> bool:
        """Wait until the process has stopped itself and return True; return False if it ended instead."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self.status = os.waitstatus_to_exitcode(status)
        return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.status is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def _reap(self) -> None:
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def state_of(pid: int) -> str:
    """Return the letter of a process's state in /proc, `X` if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def thaw(pids: Sequence[int]) -> None:
    """Continue stopped processes."""
    signal_all(pids, signal.SIGCONT)


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _live(work: Work, pipe: int, log: Path, parent: int) -> None:
    """Run the child's work and exit; never return into the parent's code."""
    status = CRASHED
    try:
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            return
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        status = work(lambda line: os.write(pipe, line.encode() + b"\n"))
    except BaseException:  # whatever it was, the parent reads it in the log
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
