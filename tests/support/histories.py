"""Histories for tests: conversations that grow, policies, and what is kept of them as readers get it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from statecache import AsyncStateCache, Settings
from statecache.core.history.values import HistoryValues, VersionAt
from statecache_workers.prune_by_hand import Outcome, prune
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows

Psql = psycopg.Connection[Any]
Values = dict[tuple[str, int], bytes]
BASE = [f"{n * 7}" for n in range(300)]


def policy(psql: Psql, *, age: timedelta | None = None, count: int | None = None, history: str = "full") -> None:
    psql.execute("DELETE FROM retention")
    psql.execute(
        "INSERT INTO retention (name, history, max_age, max_count, changed_by) VALUES ('runs', %s, %s, %s, 'test')",
        (history, age, count),
    )


def growing(number: int) -> dict[str, Any]:
    return {"log": BASE, "steps": [f"step {n}: {n * 7919}" for n in range(number)]}


async def conversation(cache: AsyncStateCache, key: str, *, times: int, first: int = 0) -> None:
    for number in range(first, first + times):
        await cache.set(key, growing(number))


def aged(psql: Psql, key: str, days: Callable[[int], float]) -> None:
    """Have versions of a key be so many days old."""
    for (version,) in rows(psql, "SELECT version FROM change WHERE key = %s", key):
        age = timedelta(days=days(version))
        psql.execute("UPDATE change SET at = now() - %s WHERE key = %s AND version = %s", (age, key, version))
    psql.execute(
        "UPDATE state s SET updated_at = c.at FROM change c"
        " WHERE s.key = %s AND (c.key, c.version) = (s.key, s.version)",
        (key,),
    )


async def read(cache: AsyncStateCache, psql: Psql) -> Values:
    """Return the values that are kept, as readers get them."""
    asked = [VersionAt(*row) for row in rows(psql, "SELECT key, version FROM change WHERE op = 'set'")]
    found = await HistoryValues(cache._runtime.postgres.fetch).read(asked, seconds=30)
    return {(place.key, place.version): value for place, value in found.items() if value is not None}


def versions(values: Values, key: str) -> list[int]:
    return sorted(version for of, version in values if of == key)


async def pruned(settings: Settings, *, dry_run: bool = False) -> Outcome:
    (outcome,) = await prune(settings, None, dry_run=dry_run)
    return outcome


async def let_go(settings: Settings, psql: Psql, worker: Worker) -> int:
    """Have all values of LangGraph's threads go that are not the newest, and return how many these were."""
    await flush(worker)
    psql.execute("DELETE FROM retention")
    psql.execute("INSERT INTO retention (name, history, changed_by) VALUES ('langgraph', 'latest', 'test')")
    return (await pruned(settings)).values


async def whole(settings: Settings, cache: AsyncStateCache, psql: Psql, before: Values) -> Values:
    """Return what is kept; nothing of it is damaged, or other than before."""
    assert (await verify(settings))[1] == []
    after = await read(cache, psql)
    assert {place: before[place] for place in after} == after
    return after
