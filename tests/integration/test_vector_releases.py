"""Indexes of vectors on the schema of an earlier release, and what that release refused for good."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.core.postgres.migrate import migrate
from statecache.core.postgres.vector_indexes import create, indexes
from statecache_workers import vector_indexing
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.fixtures.servers import MakeSettings
from tests.support.earlier_schemas import migrated_until
from tests.support.polling import pause
from tests.support.vectors import DIMS, found, near, need_pgvector, refuse, refuse_no_more, table, take_in

Psql = psycopg.Connection[Any]
EARLIER = 17
"""The last migration of a release that took every error for one of the data."""
ITS_TURN = "SELECT EXISTS (SELECT FROM vector_index), index_vectors(100)"
"""What a worker of that release asks for."""


@pytest.fixture
async def settings(make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A deployment with the schema of that release."""
    return await migrated_until(EARLIER, make_settings, monkeypatch)


async def test_what_an_earlier_release_refused_is_taken_in_after_the_migration(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_pgvector(psql)
    monkeypatch.setattr(vector_indexing, "LOOK_S", 0.1)
    for namespace in ("notes", "jobs"):
        await create(settings, namespace, member="vectors", dims=DIMS)
    await cache.set_many({"notes/a": {"vectors": near(0.1)}, "jobs/a": {"vectors": near(0.1)}, "notes/none": 1})
    async with flushing(worker), asyncio.timeout(20):  # this release's worker takes in what it can
        while worker.janitor.vectors.indexed < 3:
            await pause()
    await worker.close()
    refuse(psql, "notes", "53100")
    psql.execute("UPDATE state SET value = value WHERE key = 'notes/a'")
    take_in(psql)
    refuse_no_more(psql)
    assert rows(psql, "SELECT namespace, refused FROM vector_index ORDER BY 1") == [("jobs", 0), ("notes", 1)]
    assert await found(cache) == []
    report = await migrate(settings)
    assert "0018_vectors_wait" in report.applied
    assert rows(psql, "SELECT key FROM vector_pending ORDER BY 1") == [("notes/a",), ("notes/none",)]
    assert await found(cache) == ["notes/a"]
    take_in(psql)
    assert [(one.waiting, one.refused, one.trouble) for one in await indexes(settings)] == [(0, 0, "")] * 2
    assert await found(cache) == ["notes/a"]


async def test_a_worker_of_an_earlier_release_goes_on_beside_the_new_schema(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    need_pgvector(psql)
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    await migrate(settings)
    refuse(psql, "notes", "53100")
    await cache.set("notes/a", {"vectors": near(0.1)})
    await flush(worker)
    for _ in range(2):
        assert rows(psql, ITS_TURN) == [(True, 0)]
    refuse_no_more(psql)
    assert rows(psql, ITS_TURN) == [(True, 1)]
    assert [key for key, _ in table(psql)] == ["notes/a"]
