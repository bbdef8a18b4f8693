"""Worker processes for embedded servers, run as an operator would run them, and their migration.

A worker is ready when it has logged a line with `"event":"ready"`; its log stays in the servers' folder.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from statecache._tls import NO_FILES
from statecache.clock import monotonic
from statecache.errors import StateCacheError, Unavailable
from statecache.settings import Settings, process_environment
from statecache.testing.process import Process, spawn, until

READY_S = 60.0
STOP_S = 60.0
STATECACHE = (sys.executable, "-m", "statecache")

_READY = re.compile(rb'"event":\s*"ready"')


class Workers:
    """Worker processes, in the order of their start."""

    def __init__(self, folder: Path, environment: Callable[[], Mapping[str, str]]) -> None:
        self._folder = folder
        self._environment = environment
        self._running: list[Process] = []
        self._started = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the workers that run, oldest first."""
        return tuple(process.pid for process in self._alive())

    def start(self, count: int) -> None:
        """Start that many more workers, and return when all of them are ready."""
        fresh = [self._spawn() for _ in range(count)]
        deadline = monotonic() + READY_S
        for process in fresh:
            if not until(partial(_is_ready, process), process, timeout_s=deadline - monotonic()):
                raise self._failed(process)

    def stop(self) -> list[int]:
        """Stop all workers with SIGTERM, which lets them drain, and return their exit statuses."""
        stopping = self._alive()
        for process in stopping:
            process.resume()
            process.send(signal.SIGTERM)
        deadline = monotonic() + STOP_S
        for process in stopping:
            if not process.wait(max(0.0, deadline - monotonic())):
                process.kill()
        self._running = []
        return [process.returncode or 0 for process in stopping]

    def kill(self, index: int = 0) -> int:
        """Kill one of the running workers with SIGKILL, and return its pid."""
        process = self._alive()[index]
        process.kill()
        return process.pid

    def kill_all(self) -> None:
        """Kill all workers with SIGKILL."""
        for process in self._alive():
            process.kill()

    def pause(self, index: int = 0) -> None:
        """Freeze one of the running workers, with SIGSTOP."""
        self._alive()[index].pause()

    def resume(self, index: int = 0) -> None:
        """Let a frozen worker go on."""
        self._alive()[index].resume()

    def _alive(self) -> list[Process]:
        self._running = [process for process in self._running if process.is_running()]
        return list(self._running)

    def _spawn(self) -> Process:
        self._started += 1
        process = spawn(
            [*STATECACHE, "worker"],
            name=f"worker-{self._started}",
            folder=self._folder,
            environment=process_environment() | NO_FILES | dict(self._environment()),
        )
        self._running.append(process)
        return process

    def _failed(self, process: Process) -> Unavailable:
        status = process.returncode
        what = "is not ready in time" if status is None else f"ended with status {status}"
        return Unavailable("worker", detail=f"{process.name} {what}; it wrote: {process.tail()}")


def _is_ready(process: Process) -> bool:
    return _READY.search(process.written()) is not None


def migrate(environment: Mapping[str, str]) -> None:
    """Do what `statecache migrate` does, in this process; raise Unavailable with what it would say where it fails."""
    from statecache.concurrency import THREADS, run
    from statecache.core.postgres.migrate import migrate as migrate_schema

    given = {name.removeprefix("STATECACHE_").lower(): value for name, value in environment.items()}
    try:
        run(migrate_schema(Settings(**given), io=THREADS))
    except StateCacheError as error:
        raise Unavailable("migrate", detail=str(error)) from error
