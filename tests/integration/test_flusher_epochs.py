"""Epochs as a worker meets them whose row and whose Redis do not say the same."""

from __future__ import annotations

from typing import Any

import psycopg

from statecache_workers.worker import Worker
from tests.fix_flusher import Agents, Log, flush, rows, turn_until


async def test_a_row_that_went_back_behind_its_redis_closes_the_gate_and_the_next_epoch_is_above_both(
    agents: Agents, worker: Worker, psql: psycopg.Connection[Any], log: Log
) -> None:
    """Postgres was restored and names the same server: every flush would be refused, and agents would go on."""
    await flush(worker)
    key, at_first = agents.key_on(0), agents.meta(0)
    psql.execute("UPDATE shard SET epoch = epoch - 1 WHERE shard = 0")
    psql.execute("DELETE FROM epoch WHERE shard = 0")
    agents.commit(key)
    log.lines.clear()
    worker.refresh()
    await turn_until(worker, log, "epoch_opened")
    assert log.of("epoch_opened")[0]["epochs"] == [2]
    assert rows(psql, "SELECT epoch, replid FROM shard WHERE shard = 0") == [(2, at_first["replid"])]
    agents.commit(key)
    await flush(worker)
    assert rows(psql, "SELECT epoch, version, gap FROM change ORDER BY n") == [(1, 1, False), (2, 2, False)]
    assert agents.meta(0)["flushed"] == "2"
