"""A migration beside those who are at work: it waits for a table that is read, and who writes does not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, PostgresUnavailable, Settings
from statecache.core.postgres import migrate as module
from statecache.core.postgres.connection import LOCK_TIMEOUT_S
from statecache.core.postgres.migrate import migrate
from statecache.sql import Migration, migrations
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.support.polling import pause

Psql = psycopg.Connection[Any]
WAITS = "SELECT FROM pg_locks WHERE relation = 'state'::regclass AND NOT granted"


@pytest.fixture(autouse=True)
def _step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that notes how long it waits for a lock, and changes a table that is in use."""
    text = """
        CREATE TABLE {schema}.waits AS SELECT setting::integer AS ms FROM pg_settings WHERE name = 'lock_timeout';
        ALTER TABLE {schema}.state ADD COLUMN more integer"""

    def known(schema: str) -> list[Migration]:
        return [*migrations(schema), Migration(99, "more", text.replace("{schema}", f'"{schema}"'))]

    monkeypatch.setattr(module, "migrations", known)


@pytest.fixture
def reader(settings: Settings) -> Iterator[Psql]:
    """Somebody who reads states, as pg_dump does, for as long as it takes."""
    with psycopg.connect(settings.postgres_url) as connection:
        connection.execute(f"SELECT count(*) FROM {settings.postgres_schema}.state".encode())
        yield connection


async def test_flushes_go_on_while_a_migration_waits_for_a_reader(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql, reader: Psql
) -> None:
    await flush(worker)
    migrating = asyncio.create_task(migrate(settings))
    for at in range(2):
        async with asyncio.timeout(30):
            while not rows(psql, WAITS):
                assert not migrating.done()
                await pause()
            await cache.set(f"runs/{at}", {"step": at})
            await flush(worker)
    assert rows(psql, "SELECT count(*) FROM state") == [(2,)]
    reader.rollback()
    assert (await migrating).applied == ("0099_more",)
    ((waited_ms,),) = rows(psql, "SELECT ms FROM waits")
    assert 1000 < waited_ms < LOCK_TIMEOUT_S * 1000


async def test_who_has_waited_for_a_reader_for_long_enough_is_told_so(
    settings: Settings, psql: Psql, reader: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    with pytest.raises(PostgresUnavailable, match="others held the locks of migration 99 for a minute"):
        await migrate(settings)
    assert rows(psql, "SELECT to_regclass('waits')") == [(None,)]
