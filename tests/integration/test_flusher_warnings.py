"""A COMMIT whose own warning says that it may not be replicated does not count; what functions say is no such one."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from statecache.core.postgres.connection import Warnings, doubt_of
from statecache.errors import PostgresUnavailable
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, MakeWorker, acknowledged, flush, flush_through, flushed, rows, trigger
from tests.fixtures.servers import MakeSettings, plain_client

Psql = psycopg.Connection[Any]


@pytest.fixture
def _said_by_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a trigger says stand in for what COMMIT itself says: that has no context."""
    monkeypatch.setattr("statecache.core.postgres.connection._is_of_a_function", lambda _: False)


@pytest.mark.usefixtures("_said_by_commit")
async def test_a_warning_during_commit_moves_nothing_and_the_batch_is_repeated(
    agents: Agents, worker: Worker, psql: Psql
) -> None:
    """A cancelled wait for a synchronous standby looks like that: success, and a warning."""
    await flush(worker)
    agents.commit("runs/1")
    body = "RAISE WARNING 'canceling wait for synchronous replication due to user request';"
    with trigger(psql, "change", body, deferred=True), pytest.raises(PostgresUnavailable, match="synchronous"):
        await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change") == [(1,)]
    assert acknowledged(agents) == 0
    await flush_through(worker)
    assert rows(psql, "SELECT count(*) FROM change") == [(1,)]
    assert acknowledged(agents) == 1


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("table", ["change", "shard"])
async def test_a_warning_of_an_operators_trigger_is_no_doubt_of_the_commit(
    agents: Agents, worker: Worker, psql: Psql, table: str, *, deferred: bool
) -> None:
    await flush(worker)
    agents.commit("runs/1")
    with trigger(psql, table, "RAISE WARNING 'audit: row added';", deferred=deferred):
        await flush(worker)
    assert acknowledged(agents) == 1


def test_of_warnings_those_without_a_context_may_be_the_commits(psql: Psql) -> None:
    heard: Any = psql
    warnings = Warnings(heard)
    psql.execute(b"DO $$ BEGIN RAISE WARNING 'said by a function'; END $$")
    assert doubt_of("COMMIT", warnings) == ""
    psql.execute(b"COMMIT")  # which has nothing to commit
    assert doubt_of("COMMIT", warnings) == warnings.texts[0] != ""


@pytest.mark.usefixtures("_said_by_commit")
async def test_a_watermark_that_a_standby_may_lack_is_not_acknowledged_by_the_next_owner_either(
    agents: Agents, make_worker: MakeWorker, psql: Psql
) -> None:
    """The row shows the watermark of a COMMIT whose wait was cancelled; only a clean COMMIT behind it makes it safe."""
    first, second = make_worker(), make_worker()
    await flush(first)
    agents.commit("runs/1")
    warns = "RAISE WARNING 'canceling wait for synchronous replication due to user request';"
    with trigger(psql, "change", warns, deferred=True), pytest.raises(PostgresUnavailable):
        await flush(first)
    await first.leave()
    assert sum(flushed(psql).values()) == 1
    with trigger(psql, "shard", warns, deferred=True), pytest.raises(PostgresUnavailable):
        await flush(second)
    assert acknowledged(agents) == 0
    await flush_through(second)
    assert acknowledged(agents) == 1


@pytest.mark.usefixtures("_said_by_commit")
async def test_a_warning_that_a_default_would_hide_is_seen_all_the_same(
    make_settings: MakeSettings, make_worker: MakeWorker, site: Any
) -> None:
    hiding = quote("-c client_min_messages=error")
    settings = make_settings(postgres_url=f"{site.postgres_url}?options={hiding}")
    worker = make_worker(settings)
    path = f"-c search_path={settings.postgres_schema}"
    with (
        psycopg.connect(site.postgres_url, autocommit=True, options=path) as psql,
        plain_client(settings.redis_url) as raw,
    ):
        agents = Agents(settings, worker.keys, raw)
        await flush(worker)
        agents.commit("runs/1")
        body = "RAISE WARNING 'canceling wait for synchronous replication due to user request';"
        with trigger(psql, "change", body, deferred=True), pytest.raises(PostgresUnavailable, match="synchronous"):
            await flush(worker)
        assert acknowledged(agents) == 0
        await flush_through(worker)
        assert acknowledged(agents) == 1
