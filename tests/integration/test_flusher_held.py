"""A state's row that another transaction holds: its shard alone waits, and is tried for a moment now and then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
import pytest

from statecache.core.postgres import connection
from statecache.errors import PostgresUnavailable
from statecache_workers.database import Database
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushed, turns

Psql = psycopg.Connection[Any]

BEHIND = 7


async def test_a_row_that_is_held_is_waited_for_once_as_long_as_a_lock_may_take(
    agents: Agents, make_worker: MakeWorker, psql: Psql, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further attempts are short, for the other shards wait meanwhile; once it is let go, its shard goes on."""
    monkeypatch.setattr(connection, "LOCK_TIMEOUT_S", 0.3)
    worker = make_worker(monotonic=lambda: 0.0)
    held, waits = agents.key_on(2), list[str]()
    agents.commit(held)
    await flush(worker)
    begin = Database.begin

    async def noted(database: Database, how: str, bounds: Mapping[str, str], statements: Any) -> Any:
        if database._of_data:
            waits.append(bounds["lock"])
        return await begin(database, how, bounds, statements)

    monkeypatch.setattr(Database, "begin", noted)
    with psql.transaction():
        psql.execute("SELECT 1 FROM state WHERE key = %s FOR UPDATE", [held])
        for _ in range(BEHIND):
            agents.commit(held)
        for _ in range(2):
            for shard in (0, 1, 3):
                agents.commit(agents.key_on(shard))
            await turns(worker)
        assert flushed(psql) == {0: 2, 1: 2, 2: 1, 3: 2}
        assert [(line["shard"], held in line["reason"]) for line in log.of("not_written")] == [(2, True)]
    assert waits[:2] == ["300ms", "200ms"]
    assert waits.count("300ms") == 2  # what the others had later is waited for as anything is
    await turns(worker)
    assert flushed(psql)[2] == 1 + BEHIND
    waits.clear()
    agents.commit(held)
    await flush(worker)
    assert waits == ["300ms"]


async def test_a_row_that_is_held_of_the_only_shard_with_changes_is_an_outage_once_and_no_large_batch(
    agents: Agents, make_worker: MakeWorker, psql: Psql, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOCK_TIMEOUT_S", 0.3)
    worker = make_worker(monotonic=lambda: 0.0)
    held = agents.key_on(2)
    agents.commit(held)
    await flush(worker)
    with psql.transaction():
        psql.execute("SELECT 1 FROM state WHERE key = %s FOR UPDATE", [held])
        agents.commit(held)
        with pytest.raises(PostgresUnavailable, match="55P03"):
            await worker.turn()
        for shard in (0, 1, 3):
            agents.commit(agents.key_on(shard))
        await turns(worker)
        assert flushed(psql) == {0: 1, 1: 1, 2: 1, 3: 1}
        assert [line["shard"] for line in log.of("not_written")] == [2]
        worker.flusher._shrink([], PostgresUnavailable("55P03"), worker.settings.lease_s * 2)
        assert worker.flusher.size.whole
    await turns(worker)
    assert flushed(psql)[2] == 2
