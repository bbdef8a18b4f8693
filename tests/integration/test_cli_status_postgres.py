"""What `status` tells of a Postgres that works and yet takes nothing: what it waits for, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.cli.status.attention import WENT_BACK
from statecache.testing import servers
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, flush_through, rows
from tests.fixtures.servers import MakeSettings
from tests.support.command_line import CommandLine
from tests.support.polling import pause_thread

Psql = psycopg.Connection[Any]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings with which `status` does not wait for long."""
    return make_settings(timeout_s=1.0, hydrate_token_s=1.0)


@pytest.fixture
def bob(settings: Settings) -> Iterator[Psql]:
    """The session of a person in the deployment's schema, whose transaction began more than a second ago."""
    path = f"-c search_path={settings.postgres_schema}"
    with psycopg.connect(settings.postgres_url, application_name="psql of bob", options=path) as session:
        session.execute("SELECT pg_sleep(1.1)")
        yield session
        session.rollback()


@pytest.mark.parametrize(
    ("lock", "status"),
    [
        ("LOCK TABLE state IN SHARE MODE", 1),
        ("LOCK TABLE change IN SHARE ROW EXCLUSIVE MODE", 1),
        ("ALTER TABLE change ADD COLUMN extra integer", 4),
        ("LOCK TABLE shard", 4),
        ("LOCK TABLE cluster", 4),
    ],
)
async def test_who_has_locked_a_table_is_named(
    cli: CommandLine, worker: Worker, psql: Psql, bob: Psql, lock: str, status: int
) -> None:
    """Nothing named it: `status` said that Postgres does not answer, or that shards have no worker."""
    await flush(worker)
    psql.execute("UPDATE shard SET lease_until = now() - interval '1 second'")
    bob.execute(lock.encode())
    found = await cli.beside("status", "--json")
    assert found.status == status, found
    (told,) = [one for one in found.json["attention"] if "psql of bob" in one]
    pid = bob.info.backend_pid
    assert f"pid {pid} (" in told
    assert f"has locked {lock.split()[2]} (" in told
    assert told.endswith(f"and others wait for it: let it end, or: SELECT pg_terminate_backend({pid})")
    if "shard" in lock:  # doctor asks this table too
        assert f"pid {pid} (" in (await cli.beside("doctor", "--json")).json["unreachable"][0]


async def test_who_waits_to_lock_a_table_is_named_with_those_before_it(
    cli: CommandLine, settings: Settings, worker: Worker, psql: Psql, bob: Psql
) -> None:
    await flush(worker)
    path = f"-c search_path={settings.postgres_schema}"
    with (
        ThreadPoolExecutor(1) as threads,
        psycopg.connect(settings.postgres_url, application_name="a report", options=path) as reader,
    ):
        reader.execute("SELECT FROM shard")
        waiting = threads.submit(bob.execute, "TRUNCATE shard")
        while not rows(psql, "SELECT FROM pg_locks WHERE pid = %s AND NOT granted", bob.info.backend_pid):
            pause_thread()
        found = await cli.beside("status", "--json")
        bob.cancel()
        assert isinstance(waiting.exception(), psycopg.errors.QueryCanceled)
        (told,) = found.json["attention"][:1]
        assert "with psql of bob) waits to lock shard (AccessExclusiveLock, in a transaction of " in told
        assert f"and others behind it, for pid {reader.info.backend_pid} (" in told


async def test_a_postgres_that_is_behind_redis_is_asked_whether_it_is_the_primary(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    """An old primary that was back beside the new one was told of as shards without a worker, or an epoch to adopt."""
    for shard in (0, 1):
        agents.commit(agents.key_on(shard))
    await flush(worker)
    psql.execute("UPDATE shard SET flushed = 0 WHERE shard < 2")
    psql.execute("UPDATE shard SET epoch = 0 WHERE shard = 2")
    psql.execute("DELETE FROM change; DELETE FROM state; DELETE FROM epoch WHERE shard = 2")
    psql.execute("UPDATE shard SET lease_until = now() - interval '1 second' WHERE shard = 1")
    told = (await cli.beside("status", "--json")).json["attention"]
    assert told[:2] == [
        f"the gate of shard 2 is closed: Redis is at epoch 1, Postgres at 0; {WENT_BACK}",
        f"Redis was told that more of shard 1 is flushed than this Postgres holds: {WENT_BACK}",
    ], "a worker may have flushed more of shard 0 since"


async def test_a_person_who_only_reads_or_writes_is_not_named(
    cli: CommandLine, worker: Worker, psql: Psql, bob: Psql
) -> None:
    await flush(worker)
    psql.execute("UPDATE shard SET lease_until = now() - interval '1 second'")
    bob.execute("SELECT FROM state; INSERT INTO retention SELECT * FROM retention")
    assert "psql of bob" not in (await cli.beside("status")).out


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
