"""Whatever isolation is the default, each transaction has its own: who waits for a lock sees what its holder did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.core.postgres.migrate import migrate
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.fixtures.servers import SHARDS, MakeSettings, Site
from tests.support.command_line import CommandLine
from tests.support.polling import pause

Psql = psycopg.Connection[Any]

COMMANDS = (
    "doctor", "doctor --worker", "status", "verify", "lost", "ls aged/", "get aged/1", "log aged/1", "show aged/1",
    "schemas", "locks", "quarantine list", "policy aged", "policy aged --retention 2d --yes", "prune aged --yes",
    "vectors list", "erase aged/1 --yes",
)  # fmt: skip
LEFT = (
    "SELECT DISTINCT relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
    " WHERE mode = 'SIReadLock' AND relnamespace = current_schema()::regnamespace"
)
"""What serializable transactions have read of the schema, as long as one that overlaps with them stands."""
WAITING = "SELECT count(*) FROM pg_locks WHERE relation = 'namespace'::regclass AND NOT granted"

Isolated = Callable[[str], Settings]


@pytest.fixture
def isolated(make_settings: MakeSettings, site: Site) -> Isolated:
    """Settings of a deployment to be migrated, by the default isolation of its sessions."""

    def with_default(isolation: str) -> Settings:
        options = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
        url = psycopg.conninfo.make_conninfo(site.postgres_url, options=options)
        return make_settings(migrated=False, postgres_url=url)

    return with_default


@asynccontextmanager
async def _deployed(settings: Settings) -> AsyncIterator[tuple[Worker, AsyncStateCache, Psql]]:
    await migrate(settings)
    worker = Worker(settings)
    try:
        path = f"-c search_path={settings.postgres_schema}"
        with psycopg.connect(settings.postgres_url, autocommit=True, options=path) as psql:
            async with AsyncStateCache(settings=settings) as cache:
                yield worker, cache, psql
    finally:
        await worker.close()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_policies_that_are_recorded_at_once_come_one_after_the_other(
    isolated: Isolated, redis_raw: Any, isolation: str
) -> None:
    """Of two with one revision, Redis would take only the first."""
    settings = isolated(isolation)
    async with _deployed(settings) as (_, cache, psql), asyncio.timeout(20):
        with psql.transaction():
            psql.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            psql.execute("LOCK TABLE namespace IN SHARE ROW EXCLUSIVE MODE")
            views = [cache.namespace(name, locking="enforced") for name in ("a", "b", "c")]
            writes = [asyncio.ensure_future(view.set("1", 1)) for view in views]
            while rows(psql, WAITING) != [(len(views),)]:
                await pause()
        await asyncio.gather(*writes)
        assert rows(psql, "SELECT revision FROM namespace ORDER BY 1") == [(1,), (2,), (3,)]
        keys = KeySpace(settings.prefix, settings.shards)
        told = [redis_raw.hget(keys.meta(shard), "enforced") for shard in range(SHARDS)]
        assert told == [b"3 a b c "] * SHARDS


async def test_no_transaction_takes_the_default(
    isolated: Isolated, redis_raw: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = isolated("serializable")
    with psycopg.connect(settings.postgres_url) as overlapping:
        overlapping.execute("SELECT FROM pg_class")
        async with _deployed(settings) as (worker, cache, psql):
            await cache.set_many({f"aged/{name}": name for name in "abc"})
            await cache.namespace("aged", retention=timedelta(hours=26), locking="enforced").set("1", 1)
            await flush(worker)
            async with cache.changes("aged/", consumer="billing", follow=False) as feed:
                assert len([one async for one in feed]) == 4
            assert [state.key async for state in cache.list("aged/", where={"no": 1})] == []
            assert [change.version async for change in cache.history("aged/1")] == [1]
            assert await cache.get("aged/none") is None
            meta = KeySpace(settings.prefix, settings.shards).meta(0)
            redis_raw.hset(meta, mapping={"continues": redis_raw.hget(meta, "replid"), "replid": ""})
            await cache.set_many({f"aged/{name}": name for name in "abc"})
            await flush(worker)
            assert await cache.lost() == ()
            cli = CommandLine(settings, monkeypatch, capsys)
            async with flushing(worker):
                for command in COMMANDS:
                    ended = await cli.beside(*command.split())
                    assert ended.err == "" or ended.status == 0, (command, ended)
            assert rows(psql, LEFT) == []
            psql.execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT FROM state; COMMIT")
            assert rows(psql, LEFT) == [("state",)]
