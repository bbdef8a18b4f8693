"""How fast one worker empties a backlog, against a loop written by hand, both with fsync on.

The worker is stopped, the backlog is laid with the commit script in pipelines, the worker goes on; what counts is the
time until every shard's watermark in Redis has reached its head. The loop finds the same entries in one stream.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from time import perf_counter
from typing import Any

import psycopg

from statecache.testing.embedded import Servers
from tests.benchmarks.backlog import PIPELINE, Backlog
from tests.benchmarks.by_hand import STREAM, TABLES, flush_in_batches, flush_one_by_one
from tests.benchmarks.measuring import Row, rates
from tests.benchmarks.values import Value, encoded

CHANGES = 20_000
CHANGES_ONE_BY_ONE = 500
KEYS = 2_000


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop these processes during the block."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def flush_rate(running: Servers, backlog: Backlog, changes: int) -> float:
    """Build up a backlog while the workers stand still; return the changes per second at which they flush it."""
    with stopped(running.worker_pids):
        backlog.lay(f"flush/{number % KEYS}" for number in range(changes))
    started = perf_counter()
    backlog.until_flushed()
    return changes / (perf_counter() - started)


class Flushing:
    """The rows of flushing; `servers` have one worker, which has nothing to do."""

    def __init__(self, running: Servers, bare: Any, backlog: Backlog, values: Sequence[Value]) -> None:
        self._running = running
        self._bare = bare
        self._backlog = backlog
        self._values = [encoded(value) for value in values]
        self._numbers = count()

    def rows(self, rounds: int) -> list[Row]:
        """Measure all of them in turns."""
        spent: dict[str, list[float]] = {"worker": [], "batches": [], "one by one": []}
        self._backlog.until_flushed()
        with psycopg.connect(self._running.postgres_url, autocommit=True) as connection:
            connection.execute(TABLES)
            for turn in range(rounds):
                for name in list(spent)[:: 1 if turn % 2 else -1]:
                    spent[name].append(self._rate(name, connection))
        ours = ("flush of 1 KB changes, one worker", spent["worker"])
        return [
            rates(ours, ("loop by hand: XREAD, unnest, XTRIM", spent["batches"]), bound=0.65),
            rates(ours, ("loop by hand: one transaction a change", spent["one by one"]), bound=5),
        ]

    def _rate(self, name: str, connection: psycopg.Connection[Any]) -> float:
        if name == "worker":
            return flush_rate(self._running, self._backlog, CHANGES)
        changes = CHANGES if name == "batches" else CHANGES_ONE_BY_ONE
        self._lay_stream(changes)
        if name == "batches":
            return changes / flush_in_batches(self._bare, connection)
        return changes / flush_one_by_one(self._bare, connection, changes)

    def _lay_stream(self, changes: int) -> None:
        """Write that many changes to one stream, in the format of the commit script."""
        self._bare.delete(STREAM)
        for start in range(0, changes, PIPELINE):
            pipe = self._bare.pipeline(transaction=False)
            for number in islice(self._numbers, min(PIPELINE, changes - start)):
                value = self._values[number % len(self._values)]
                key, version = f"flush/{number % KEYS}", number // KEYS + 1
                pipe.xadd(STREAM, entry_of(number, key, version, value), id=f"1-{number + 1}")
            pipe.execute()


def entry_of(number: int, key: str, version: int, value: bytes) -> dict[Any, Any]:
    """Return an entry as the commit script writes it."""
    return {
        "format": "1", "change_id": secrets.token_hex(12), "at": "2026-11-20T12:00:00.123456Z", "writer": "bench",
        "entries": number, "bytes": number * 1300, "key1": key, "op1": "set",
        "version1": version, "parent1": secrets.token_hex(12), "encoding1": "json", "schema1": "",
        "value1": value,
    }  # fmt: skip
