"""Workers in this process, turned by hand, and commits as agents make them, by the real script.

Nothing here waits for time to pass: a worker is turned until it has nothing left to do, leases are aged in Postgres.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.errors import Unavailable
from statecache.keys import KeySpace
from statecache.lua import parts_of, script
from statecache_workers.logs import LOGGER
from statecache_workers.worker import Worker
from tests.dirtiness import dirty_keys

TURNS_MAX = 500
TURNS_S = 30.0
_STATE = {
    "key": "",
    "op": "set",
    "expected": "*",
    "value": "1",
    "encoding": "json",
    "schema": "",
    "ttl": "",
    "new": "1",
}
"""One state's part of the commit script's ARGV, in its order."""


class Agents:
    """Agents that commit change-sets to one deployment."""

    def __init__(self, settings: Settings, keys: KeySpace, raw: Any) -> None:
        self.settings = settings
        self.keys = keys
        self.raw = raw

    def ask(self, *states: Any, change_id: str = "", text: str = "", **more: Any) -> list[Any]:
        """Run the commit script and return its answer; a state is a key or (key, value), or a dict of its ARGV.

        `text` is the text of another script to run instead.
        """
        given = [{"key": state} if isinstance(state, str) else state for state in states]
        given = [{"key": one[0], "value": one[1]} if isinstance(one, tuple) else one for one in given]
        keys, shard = self.keys, self.keys.shard(given[0]["key"])
        names = [keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.hydrating(shard)]
        arguments: list[Any] = [
            "nonce", change_id or secrets.token_hex(12), "on", 0, more.get("writer", "agent"),
            more.get("actor", ""), more.get("reason", ""), self.settings.backlog_entries_max,
            self.settings.backlog_bytes_max, 2**24, 2**23,
        ]  # fmt: skip
        for one in given:
            names.append(keys.state(one["key"]))
            arguments += (_STATE | one).values()
        answer: list[Any] = parts_of(self.raw.eval(text or script("commit").text, len(names), *names, *arguments))
        return answer

    def commit(self, *states: Any, **more: Any) -> str:
        """Commit and return the position."""
        answer = self.ask(*states, **more)
        assert answer[1] == b"OK", answer
        return str(answer[2].decode())

    def meta(self, shard: int) -> dict[str, str]:
        """Return a shard's meta."""
        return {name.decode(): value.decode() for name, value in self.raw.hgetall(self.keys.meta(shard)).items()}

    def entries(self, shard: int) -> list[str]:
        """Return the ids in a shard's stream."""
        return [entry_id.decode() for entry_id, _ in self.raw.xrange(self.keys.changes(shard))]

    def dirty(self, shard: int) -> set[str]:
        """Return a shard's dirty keys."""
        return set(dirty_keys(self.raw, self.keys, shard))

    def key_on(self, shard: int, name: str = "runs") -> str:
        """Return a key on that shard, in a group of its own."""
        return next(key for i in count() if self.keys.shard(key := f"{name}/{i}") == shard)


@pytest.fixture
def agents(settings: Settings, keys: KeySpace, redis_raw: Any) -> Agents:
    """Agents that commit to the test's deployment."""
    return Agents(settings, keys, redis_raw)


MakeWorker = Callable[..., Worker]


@pytest.fixture
async def make_worker(settings: Settings) -> AsyncIterator[MakeWorker]:
    """A maker of workers of the test's deployment."""
    made: list[Worker] = []

    def make(given: Settings = settings, **more: Any) -> Worker:
        made.append(Worker(given, **more))
        return made[-1]

    yield make
    for worker in made:
        await worker.close()


@pytest.fixture
def worker(make_worker: MakeWorker) -> Worker:
    """A worker of the test's deployment."""
    return make_worker()


async def flush(worker: Worker) -> None:
    """Turn the worker until it owns what it can, every open shard is flushed to its head, and nothing is due."""
    for _ in range(TURNS_MAX):
        more = await worker.turn()
        targets = worker.positions() or {}
        new = [one for one in worker.holdings.values() if one.standing == "new"]
        if worker.ready and not more and not worker.behind(targets) and not new:
            return
        if not more:
            await worker.rest()
    raise AssertionError(f"not flushed after {TURNS_MAX} turns: {worker.behind(worker.positions() or {})} are left")


@contextlib.asynccontextmanager
async def flushing(worker: Worker) -> AsyncIterator[None]:
    """Let the worker work beside the block, as its process does."""
    over = False

    async def work() -> None:
        while not over:
            if not await worker.turn() and not over:
                await worker.rest()

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        over = True
        worker.nudge()
        await task


async def turn_until(worker: Worker, log: Log, event: str) -> None:
    """Turn the worker until it has logged that event."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TURNS_S):
            while True:
                more = await worker.turn()
                if log.of(event):
                    return
                if not more:
                    await worker.rest()
    raise AssertionError(f"no {event} in {log.lines}")


async def flush_through(worker: Worker, *, until: Callable[[], bool] = lambda: False) -> None:
    """Do the same through outages, as the process does; stop at an outage at which `until` holds."""
    for _ in range(TURNS_MAX):
        try:
            await flush(worker)
        except Unavailable:
            if until():
                return
            continue
        return
    raise AssertionError("the outage does not end")


class Log(logging.Handler):
    """A handler that keeps what workers log: (event, fields)."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.getMessage(), getattr(record, "fields", {})))

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the fields of each line of that event."""
        return [fields for name, fields in self.lines if name == event]


@pytest.fixture
def log() -> Iterator[Log]:
    """What workers log during the test."""
    logger, handler = logging.getLogger(LOGGER), Log()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def rows(psql: psycopg.Connection[Any], query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    return psql.execute(query.encode(), parameters or None).fetchall()


def flushed(psql: psycopg.Connection[Any]) -> dict[int, int]:
    """Return the watermarks that Postgres holds, by shard."""
    return dict(rows(psql, "SELECT shard, flushed FROM shard"))
