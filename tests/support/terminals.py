"""A command in a terminal of its own: what it draws, and keys that are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from statecache.clock import monotonic
from tests.support.command_line import WAIT_S, CommandLine


class Terminal:
    """A terminal with a command in it."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self._screen = screen
        self.written = b""

    def until(self, holds: Callable[[bytes], bool]) -> None:
        """Read on until the condition holds of what is written from now on."""
        start, end = len(self.written), monotonic() + WAIT_S
        while not holds(self.written[start:]):
            ready, _, _ = select.select([self._screen], [], [], max(0.0, end - monotonic()))
            assert ready, self.written[-2000:]
            try:
                more = os.read(self._screen, 65536)
            except OSError:  # the other end is closed
                more = b""
            assert more, self.written[-2000:]
            self.written += more

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._screen, key)

    def resize(self, columns: int, lines: int) -> None:
        """Give it another size."""
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


CODE = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from statecache.cli import main
main()
"""


@contextmanager
def in_terminal(cli: CommandLine, *arguments: str, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    """Run a command in a terminal of that size, which has to look afterwards as before."""
    screen, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    before = termios.tcgetattr(screen)
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        stdin=inside, stdout=inside, stderr=inside, start_new_session=True, env=cli.environment(),
    )  # fmt: skip
    try:
        yield Terminal(process, screen)
        assert termios.tcgetattr(screen) == before
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(inside)
        os.close(screen)
