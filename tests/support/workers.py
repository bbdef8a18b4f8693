"""Workers at work beside a test: in its own event loop, or as a process whose log is read."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from statecache import Settings
from statecache.settings import process_environment
from statecache_workers.runner import Runner

WAIT_S = 60.0


@asynccontextmanager
async def at_work(settings: Settings, *, flushed_from: Sequence[str] = ()) -> AsyncIterator[None]:
    """Have a worker at work in the background, one that has flushed from these servers before."""
    runner = Runner(settings)
    for replid in flushed_from:
        runner.worker.gatekeeper.agreed(replid)
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        runner.signalled()
        await task


class WorkerProcess:
    """A worker process, and what it has logged so far; where its log goes elsewhere it is not read."""

    def __init__(self, settings: Settings, *, log: int = asyncio.subprocess.PIPE, **more: Any) -> None:
        given = {
            "redis_url": settings.redis_url, "postgres_url": settings.postgres_url, "prefix": settings.prefix,
            "postgres_schema": settings.postgres_schema, "shards": settings.shards, "fence": settings.fence,
        } | more  # fmt: skip
        self._environment = process_environment() | {
            f"STATECACHE_{name}".upper(): str(value) for name, value in given.items()
        }
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.lines: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "statecache", "worker", env=self._environment, stderr=self._log
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def until(self, *events: str) -> dict[str, Any]:
        """Read the log until each of the events has come, in any order; return the last one's fields."""
        assert self._process is not None
        assert self._process.stderr is not None
        left = {*events}
        async with asyncio.timeout(WAIT_S):
            while line := await self._process.stderr.readline():
                self.lines.append(json.loads(line))
                left.discard(self.lines[-1]["event"])
                if not left:
                    return self.lines[-1]
        raise AssertionError(f"it ended without {left}: {self.lines}")

    def send(self, kind: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(kind)

    async def ended(self) -> int:
        """Wait for the end and return the exit status."""
        assert self._process is not None
        async with asyncio.timeout(WAIT_S):
            return await self._process.wait()


@asynccontextmanager
async def ready(settings: Settings, **more: Any) -> AsyncIterator[WorkerProcess]:
    """Start a worker, and yield it once it is ready."""
    async with WorkerProcess(settings, **more) as process:
        await process.until("ready")
        yield process
