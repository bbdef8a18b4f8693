"""`verify` goes through large histories in steps that Postgres allows: none lasts as long as its limits.

Nor are columns in its way that somebody has added to the tables.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.core.postgres import connection
from statecache.rules.chains import Fault
from statecache.sql import statement
from statecache_workers import verification
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush


async def test_a_page_ends_where_its_values_would_take_long_to_make_again(
    settings: Settings, cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a transaction in which nothing is asked for long, and of large values little may be kept."""
    for number in range(40):
        await cache.set("runs/1", {"messages": ["the same line, over and over"] * 300, "number": number})
    await flush(worker)
    monkeypatch.setattr(verification, "BYTES", 1024)
    pages: list[list[int]] = []
    take = verification.Verification._take

    def sized(walk: verification.Verification, page: Any, found: Any) -> list[Fault]:
        pages.append([row.size for row in page])
        return take(walk, page, found)

    monkeypatch.setattr(verification.Verification, "_take", sized)
    counts, faults = await verify(settings)
    assert (counts.values, faults) == (40, [])
    assert max(sum(sizes[:-1]) for sizes in pages) <= 1024 * 32
    assert sum(map(len, pages)) == 40


async def test_a_key_that_takes_longer_than_a_transaction_may_is_verified(
    settings: Settings, cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(15):
        await cache.set("runs/1", number)
    await flush(worker)
    monkeypatch.setattr(verification, "ROWS", 1)
    monkeypatch.setattr(connection, "STATEMENTS_MAX", 1)
    page = verification.Verification._page

    async def slow(walk: verification.Verification, transaction: Any, at: tuple[str, int]) -> Any:
        read = await page(walk, transaction, at)
        await walk._database.exchange([("SELECT pg_sleep(0.1)", None)])
        return read

    monkeypatch.setattr(verification.Verification, "_page", slow)
    counts, faults = await verify(settings.model_copy(update={"timeout_s": 1.0}))
    assert (counts.values, faults) == (15, [])


async def test_columns_that_somebody_has_added_are_in_nobodys_way(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    """They have names of what stands in statements beside the tables' own columns."""
    added = ", ".join(
        f"ADD COLUMN {name} text" for name in ("weight", "bytes_before", "from_n", "part", "age", "behind")
    )
    for table in ("change", "state", "late_change"):
        psql.execute(f"ALTER TABLE {table} {added}".encode())
    await cache.set("runs/1", 1)
    await flush(worker)
    assert (await verify(settings))[1] == []
    assert [state.key async for state in cache.list("runs/")] == ["runs/1"]
    shards = [*range(settings.shards)]
    none = [0] * settings.shards
    asked: dict[str, Any] = {
        "shards": shards,
        "epochs": [9] * settings.shards,
        "ns": none,
        "parts": none,
        "lates": none,
    }
    asked |= {"rows": 100, "late": 100, "bytes": 1000, "prefix": "", "beyond": "s"}
    assert len(psql.execute(statement("feed_changes", settings.postgres_schema).encode(), asked).fetchall()) >= len(
        shards
    )
