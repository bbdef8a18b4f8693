"""Deployments that begin empty, for one test each, on servers that many tests share: a few milliseconds apiece.

A deployment has a prefix in Redis, a schema in Postgres, and a worker in a thread of this process. The schema of one
that has ended is emptied for the next, if the test has left it as it was made; else it is dropped.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from statecache.concurrency.bounding import BoundConnection
from statecache.settings import Settings
from statecache.testing.emptied_schemas import Schemas
from statecache_workers.runner import Runner

SHARDS = 4
END_S = 10.0
"""How long a worker may take to end, in seconds; it drains for at most five."""


class Deployments:
    """The deployments on one Redis and one Postgres."""

    def __init__(self, redis_url: str, postgres_url: str) -> None:
        self._urls = {"redis_url": redis_url, "postgres_url": postgres_url}
        self._postgres = BoundConnection.connect(postgres_url, autocommit=True, prepare_threshold=None)
        self._redis: Any = redis.Redis.from_url(redis_url)
        self._schemas = Schemas()

    @contextmanager
    def fresh(self, **settings: Any) -> Iterator[Settings]:
        """Give the settings of a deployment that begins empty, with a worker while the block lasts."""
        name = f"test_{secrets.token_hex(6)}"
        ours = {"shards": SHARDS, "drain_s": END_S / 2, **settings, **self._urls}
        made = Settings(**{**ours, "prefix": name, "postgres_schema": name})
        made = self._schemas.set_up(made, self._postgres)
        worker = ThreadWorker(made)
        try:
            yield made
        finally:
            worker.stop()
            self._clear(made)

    def _clear(self, settings: Settings) -> None:
        """Remove what a test has left."""
        keys = [*self._redis.scan_iter(f"{settings.prefix}:*", count=1000)]
        if keys:
            self._redis.unlink(*keys)
        if not self._schemas.give(settings.postgres_schema, self._postgres):
            self._postgres.execute(f'DROP SCHEMA IF EXISTS "{settings.postgres_schema}" CASCADE'.encode())

    def close(self) -> None:
        """Drop the schemas that were kept for the next test, and disconnect."""
        for schema in self._schemas.spare():
            self._postgres.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())
        self._postgres.close()
        self._redis.close()


class ThreadWorker:
    """A worker in a thread of this process, with a loop of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._begun = threading.Event()
        self._stop: Any = None
        self._thread = threading.Thread(target=self._run, name="statecache-test-worker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        loop, runner = asyncio.get_running_loop(), Runner(self._settings)
        self._stop = lambda: loop.call_soon_threadsafe(runner.signalled)
        self._begun.set()
        await runner.run()

    def stop(self) -> None:
        """Have it drain and end, and wait for that."""
        self._begun.wait(END_S)
        if self._thread.is_alive():
            self._stop()
        self._thread.join(END_S)
