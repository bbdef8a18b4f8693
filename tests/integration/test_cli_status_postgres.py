"""What `status` tells of a Postgres that works and yet takes nothing: what it waits for, and what to do about it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.testing import servers
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush_through, rows
from tests.support.command_line import CommandLine
from tests.support.polling import pause_thread

Psql = psycopg.Connection[Any]


def _until_waiting(url: str, admin: Psql, threads: ThreadPoolExecutor) -> Any:
    """Write the shards' rows until the COMMIT waits for a standby, for a second; return what is under way.

    The server's processes learn of a setting one after the other.
    """
    waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND xact_start < now() - interval '1 second'"
    writing = None
    while not rows(admin, waits):
        if writing is None or writing.done():
            writing = threads.submit(_write_rows, url)
        pause_thread()
    return writing


def _write_rows(url: str) -> None:
    with psycopg.connect(url, autocommit=True, application_name="statecache worker 1") as worker:
        worker.execute("UPDATE statecache.shard SET lease_until = now() - interval '1 second'")


async def test_a_synchronous_standby_that_is_lost_is_named_and_no_session_is_blamed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was told of a held row, and to end the session that waits: the next one waited as well."""
    with servers(workers=0, settings={"shards": "4"}, fsync=False) as s:
        settings = Settings(shards=4, redis_url=s.redis_url, postgres_url=s.postgres_url)
        worker = Worker(settings)
        await flush_through(worker)
        await worker.close()
        with psycopg.connect(s.postgres_url, autocommit=True) as admin, ThreadPoolExecutor(1) as threads:
            _write_rows(s.postgres_url)
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            admin.execute("SELECT pg_reload_conf()")
            try:
                _until_waiting(s.postgres_url, admin, threads)
                found = await CommandLine(settings, monkeypatch, capsys).beside("status", "--json")
            finally:
                admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
                admin.execute("SELECT pg_reload_conf()")
    told = found.json["attention"][0]
    assert told.startswith("shards 0, 1, 2, 3 can be taken by no worker: COMMIT waits in Postgres for a synchronous")
    assert "(synchronous_standby_names = 'nobody'): bring it back" in told
    assert "pg_terminate_backend" not in " ".join(found.json["attention"])
