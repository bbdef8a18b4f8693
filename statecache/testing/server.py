"""What Valkey and Postgres have in common: a port that stays, a start that waits, four ways to come to harm.

A server is ready when it has answered over a socket file in a folder of its own, or through a file only it writes: an
answer on its port could come from anybody. A port that turns out to be taken is exchanged for another one, as long as
nobody knows it yet; once a server has run, its port is in use in URLs, and a restart insists on it for a while.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from pathlib import Path

from statecache.clock import sleep
from statecache.errors import Unavailable
from statecache.testing.ports import free_port
from statecache.testing.process import Process, until

START_S = 60.0
STOP_S = 30.0
START_ATTEMPTS_MAX = 10
RETRY_S = 0.25

_PORT_TAKEN = "Address already in use"
_OLD_PROCESSES = "pre-existing shared memory block"  # of a Postgres whose first process alone was killed


class Server(ABC):
    """One server program on one port, with its data in a folder that outlives the program."""

    name: str
    stop_signal: signal.Signals

    def __init__(self, folder: Path, *, name: str, port: int | None, port_is_fixed: bool) -> None:
        self.folder = folder
        self.name = name
        self.port = port or free_port()
        self._port_is_fixed = port_is_fixed
        self._process: Process | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The server's URL, with its password."""

    @property
    def pid(self) -> int | None:
        """The pid of the server's main process, None while it does not run."""
        return self._process.pid if self._process is not None and self._process.is_running() else None

    def start(self) -> None:
        """Start the server if it does not run, and return when it answers."""
        if self.pid is not None:
            return
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            self._process = self._spawn()
            if until(self._is_ready, self._process, timeout_s=START_S):
                self._port_is_fixed = True
                return
            self._give_up_or_prepare(self._process, last=attempt == START_ATTEMPTS_MAX)

    def stop(self) -> None:
        """Stop the server in its orderly way; its data stay."""
        if self._process is not None and self._process.is_running():
            self._process.stop(self.stop_signal, timeout_s=STOP_S)

    def discard(self) -> None:
        """End the server in its quickest clean way: its data are not wanted any more."""
        self.kill()

    def kill(self) -> None:
        """Kill the server and all its processes at once, with SIGKILL; what it had written stays."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server, with SIGSTOP: connections stay open and nothing answers."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Let a frozen server go on."""
        if self._process is not None:
            self._process.resume()

    def _give_up_or_prepare(self, process: Process, *, last: bool) -> None:
        late = process.is_running()
        process.kill()
        written = process.tail()
        if last or not (_PORT_TAKEN in written or _OLD_PROCESSES in written):
            reason = "it did not answer in time" if late else "it did not start"
            raise self._failed(f"{reason}; it wrote: {written}")
        if self._port_is_fixed or _OLD_PROCESSES in written:
            sleep(RETRY_S)
        else:
            self.port = free_port()

    @abstractmethod
    def _spawn(self) -> Process: ...

    @abstractmethod
    def _is_ready(self) -> bool: ...

    @abstractmethod
    def _failed(self, detail: str) -> Unavailable: ...
