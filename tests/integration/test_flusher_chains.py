"""What the chains' own constraints are for: the flusher's judgement rests on tips that it remembers."""

from __future__ import annotations

from typing import Any

import psycopg

from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, flush, flushed, rows


async def test_a_fork_that_a_remembered_tip_hides_is_made_visible_by_its_version(
    agents: Agents, worker: Worker, psql: psycopg.Connection[Any], log: Log
) -> None:
    """Somebody else took version 2 in Postgres, and the shard's watermark does not tell: the version is taken."""
    key, ours, theirs = agents.key_on(0), "a" * 24, "b" * 24
    agents.commit(key)
    await flush(worker)
    psql.execute(
        b"INSERT INTO change SELECT key, 2, %s, change_id, shard, epoch, n, op, value, encoding, schema, writer, actor,"
        b" reason, gap, at FROM change",
        (theirs,),
    )
    psql.execute(b"UPDATE state SET version = 2, parent_change_id = change_id, change_id = %s", (theirs,))
    agents.commit(key, change_id=ours)
    assert worker.flusher.tips.get(worker.keys.shard(key), key) is not None
    await flush(worker)
    assert rows(psql, "SELECT version, change_id FROM change WHERE version > 1") == [(2, theirs)]
    assert rows(psql, "SELECT version, change_id FROM state") == [(2, theirs)]
    assert rows(psql, "SELECT change_id, cause FROM conflict") == [(ours, "behind")]
    assert [line["change_id"] for line in log.of("forked")] == [ours]
    assert flushed(psql)[0] == 2
    assert agents.raw.exists(agents.keys.state(key)) == 0
