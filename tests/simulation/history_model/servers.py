"""One deployment whose history is played with: two clients, a worker that is turned by hand, and what befalls them.

Whoever is killed is cut off at one of its exchanges, counted from now: before it is sent, or behind its answer. Its
connection is closed, nothing is told to anybody any more, and its leases are left to end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from statecache import AsyncStateCache, Settings, StateCache
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.connection import Link
from statecache.errors import RedisUnavailable
from statecache.keys import KeySpace
from statecache_workers import pruning
from statecache_workers.database import Database
from statecache_workers.prune_by_hand import prune
from statecache_workers.prune_passes import PrunePasses
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing
from tests.fixtures.servers import plain_client
from tests.simulation.history_model.plain import PlainHistory
from tests.support.awaited import awaited
from tests.support.dirtiness import evict

SMALL_LOTS = {"ROWS": 7, "VALUES": 3, "LAST_RUNS": 1}
"""How little a prune does in one transaction, so that there is a middle in which it can be killed."""


class HistoryServers:
    """The deployment, and the plain history that it has to be."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = KeySpace(settings.prefix, settings.shards)
        self.past = PlainHistory(self.keys)
        self.raw = plain_client(settings.redis_url)
        path = f"-c search_path={settings.postgres_schema}"
        self.psql: psycopg.Connection[Any] = psycopg.connect(settings.postgres_url, autocommit=True, options=path)
        self.policies: dict[str, tuple[int | None, timedelta | None]] = {}
        self.clients: list[AsyncStateCache] = [
            AsyncStateCache(settings=settings.model_copy(update={"writer": "asynchronous"})),
            awaited(StateCache(settings=settings.model_copy(update={"writer": "synchronous"}))),
        ]
        self._latest: set[str] = set()
        self._flushed_from: set[str] = set()
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        """The worker that there is now."""
        if self._worker is None:
            self._worker = Worker(self.settings)
            self._worker.janitor.prunes.ask = _nothing  # type: ignore[method-assign]  # passes are drawn, as all else is
        return self._worker

    async def close(self) -> None:
        """End all that was opened."""
        for client in self.clients:
            await client.close()
        if self._worker is not None:
            await self._worker.close()
        self.psql.close()
        self.raw.close()

    # Flushing.

    async def flush(self) -> None:
        """Flush all that there is."""
        await flush(self.worker)
        self._flushed_from |= self._lineage()
        self.look()
        left = {shard: n for shard, n in self.past.n.items() if self.past.flushed.get(shard, 0) != n}
        assert not left, f"flushed up to {self.past.flushed}, and committed up to {self.past.n}"

    def look(self) -> None:
        """Learn how far Postgres holds what was committed."""
        self.past.flushed = dict(self.psql.execute("SELECT shard, flushed FROM shard").fetchall())

    def _lineage(self) -> set[str]:
        return {row[0] for row in self.psql.execute("SELECT replid FROM shard")}

    @contextlib.asynccontextmanager
    async def flushes(self) -> AsyncIterator[None]:
        """Let the worker go on beside the block."""
        try:
            async with flushing(self.worker):
                yield
        finally:
            self._flushed_from |= self._lineage()
            self.look()

    async def replace_worker(self) -> None:
        """Let another worker take over from one that was killed."""
        await self._discard()
        await self.flush()

    async def _discard(self) -> None:
        worker, self._worker = self.worker, None
        worker.flusher.acknowledgement.tell = _no_answer  # type: ignore[method-assign]
        await worker.close()
        self._flushed_from.clear()
        self.psql.execute("UPDATE shard SET lease_until = now() - interval '1 second'")
        self.psql.execute("UPDATE worker SET beat_until = now() - interval '1 second'")
        self.psql.execute("UPDATE prune_pass SET held_until = now() - interval '1 second'")

    async def kill_flush(self, moment: int) -> bool:
        """Kill the worker in the middle of a flush; return whether it was at it still."""
        killed = await self._killed(moment, lambda: flush(self.worker))
        await self.replace_worker()
        return killed

    async def _killed(self, moment: int, work: Callable[[], Awaitable[object]]) -> bool:
        with dying_at(moment):
            try:
                await work()
            except asyncio.CancelledError:
                return True
        return False

    # What policies let go.

    def set_policy(self, namespace: str, *, count: int | None, age: timedelta | None, history: str = "full") -> None:
        """Record what is kept of a namespace."""
        self.mark()
        self.policies[namespace] = (1 if history == "latest" else count), age
        (self._latest.add if history == "latest" else self._latest.discard)(namespace)
        self.psql.execute(
            "INSERT INTO retention (name, history, max_age, max_count, changed_by) VALUES (%s, %s, %s, %s, 'model')"
            " ON CONFLICT (name) DO UPDATE SET max_age = excluded.max_age, max_count = excluded.max_count",
            (namespace, history, age, count),
        )
        self.mark()

    def is_latest(self, key: str) -> bool:
        """Return whether a flush takes away what it replaces of a key."""
        return key.split("/")[0] in self._latest

    def mark(self) -> None:
        """Mark what may be let go by now."""
        now = datetime.now(UTC)
        for namespace, (count, age) in self.policies.items():
            if count is not None or age is not None:
                before = None if age is None else now - age
                for row in self.past.replaced(namespace, count=count, before=before):
                    row.may_go = True

    async def prune(self, *, by_worker: bool, moment: int = 0) -> bool:
        """Let go what may go, by hand or by a worker's pass; return whether it was killed, at that moment."""
        begun = datetime.now(UTC)
        work = self._pass if by_worker else self._by_hand
        with small_lots():
            if moment and await self._killed(moment, work):
                self.mark()
                return True
            if not moment:
                await work()
        self.mark()
        needed = self.past.read_by_branches()
        for namespace, (count, age) in self.policies.items():
            if count is None and age is None:
                continue
            before = None if age is None else begun - age
            for row in [*self.past.replaced(namespace, count=count, before=before)]:
                row.kept = (row.key, row.version) in needed
        return False

    async def _by_hand(self) -> None:
        outcomes = await prune(self.settings, None, dry_run=False)
        assert [one.damaged for one in outcomes if one.damaged] == []

    async def _pass(self) -> None:
        self.psql.execute("DELETE FROM prune_pass")
        passes = PrunePasses(self.settings, self.keys, by="model")
        passes.ask()
        assert passes._task is not None
        try:
            await passes._task
        finally:
            await passes.stop()
        assert passes.pruned.damaged == []

    # What befalls Redis.

    def evict(self) -> int:
        """Take all states away that are clean; return how many these were."""
        return sum(evict(self.raw, self.keys, key) for key in self.past.chains)

    async def lose_redis(self) -> int:
        """Let Redis come back empty; return how many versions were lost with it."""
        if not self._lineage() <= self._flushed_from:
            await self.flush()
        self.look()
        self.raw.unlink(*self.raw.keys(f"{self.settings.prefix}:*"))
        lost = self.past.lose()
        await self.flush()
        return lost


def _nothing() -> None:
    """Begin no pass."""


async def _no_answer(*_: Any, **__: Any) -> Any:
    raise RedisUnavailable("connection", detail="the worker is gone")


@contextlib.contextmanager
def small_lots() -> Iterator[None]:
    """Let prunes do little at once."""
    before = {name: getattr(pruning, name) for name in SMALL_LOTS}
    try:
        for name, value in SMALL_LOTS.items():
            setattr(pruning, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(pruning, name, value)


@contextlib.contextmanager
def dying_at(moment: int) -> Iterator[None]:
    """Let whoever works on a worker's connection die at an exchange: the first is 1, odd ones before, even ones behind.

    Every exchange has two moments, one before it is sent and one behind its answer.
    """
    left, changed = moment, Database
    exchange, commit = Database.exchange, Database.commit

    async def pass_by(database: Database) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            await database.close()
            raise asyncio.CancelledError

    async def exchange_by(database: Database, statements: Any) -> Any:
        await pass_by(database)
        found = await exchange(database, statements)
        await pass_by(database)
        return found

    async def commit_by(database: Database, statements: Any = ()) -> None:
        await pass_by(database)
        await commit(database, statements)
        await pass_by(database)

    wanted: Any = changed
    wanted.exchange, wanted.commit = exchange_by, commit_by
    try:
        yield
    finally:
        wanted.exchange, wanted.commit = exchange, commit


@contextlib.contextmanager
def at_exchange(moment: int, then: Callable[[], object]) -> Iterator[None]:
    """Do something at an exchange of anybody with Redis or Postgres: odd moments are before it, even ones behind it."""
    left = moment
    run, fetch = Link.run, PostgresTier.fetch

    def pass_by() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            then()

    async def run_by(link: Any, *args: Any, **more: Any) -> Any:
        pass_by()
        found = await run(link, *args, **more)
        pass_by()
        return found

    async def fetch_by(tier: Any, *args: Any, **more: Any) -> Any:
        pass_by()
        found = await fetch(tier, *args, **more)
        pass_by()
        return found

    link: Any = Link
    tier: Any = PostgresTier
    link.run, tier.fetch = run_by, fetch_by
    try:
        yield
    finally:
        link.run, tier.fetch = run, fetch


async def cancelled_at(moment: int, call: Awaitable[Any]) -> tuple[bool, Any]:
    """Cancel a call of the asynchronous client at one of its exchanges; return whether it was at it, and the answer."""
    task = asyncio.ensure_future(call)
    with at_exchange(moment, task.cancel):
        try:
            return False, await task
        except asyncio.CancelledError:
            return True, None


def ages(seconds: float) -> timedelta:
    """Return an age of so many seconds."""
    return timedelta(seconds=seconds)
