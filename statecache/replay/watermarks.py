"""Watching the watermarks from outside, for the flush lag.

One thread looks at the shards' rows in Postgres every 25 milliseconds. The lag of a change is the time from its
acknowledgement, by its agent's monotonic clock, to the first look that saw the watermark at its position or beyond:
outages are included, and up to one interval too much, or the time until the watcher itself is connected again. A
change at `postgres` durability is acknowledged after the watermark has passed, so only that excess is left of its lag.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Self

import psycopg

from statecache.clock import monotonic
from statecache.concurrency import THREADS, run
from statecache.core.postgres.connection import connect
from statecache.core.postgres.transactions import asked
from statecache.errors import PostgresUnavailable
from statecache.settings import Settings

LOOK_S = 0.025
_AGAIN_S = 0.1


class Watermarks:
    """Each shard's watermarks with the time when each was first seen, collected while the block runs."""

    def __init__(self, settings: Settings) -> None:
        self.seen: dict[int, list[tuple[int, float]]] = {}
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="statecache-watermarks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10.0)

    @property
    def flushed(self) -> int:
        """The sum of the watermarks as they were last seen."""
        return sum(marks[-1][0] for marks in list(self.seen.values()))

    def _watch(self) -> None:
        while not self._stop.wait(0):
            try:
                connection: Any = run(connect(self._settings, "statecache replay", io=THREADS))
                with contextlib.closing(connection.plain):
                    self._look(connection)
            except (psycopg.Error, PostgresUnavailable):
                self._stop.wait(_AGAIN_S)

    def _look(self, connection: Any) -> None:
        schema, seconds = self._settings.postgres_schema, self._settings.timeout_s
        while True:
            rows = run(asked(connection, schema, "audit_watermarks", {}, seconds=seconds, io=THREADS))
            now = monotonic()
            for shard, flushed in rows:
                marks = self.seen.setdefault(shard, [(0, now)])
                if flushed > marks[-1][0]:
                    marks.append((flushed, now))
            if self._stop.wait(LOOK_S):
                return
