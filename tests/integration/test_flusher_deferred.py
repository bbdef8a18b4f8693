"""A constraint that is checked at COMMIT refuses a change: it is parked, and it alone."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, flush, flushed, rows

Psql = psycopg.Connection[Any]


def defer(psql: Psql, table: str, condition: str, state: str = "23514") -> None:
    """Have Postgres refuse at COMMIT what has written such rows of a table."""
    psql.execute(
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN"
        f" IF {condition} THEN RAISE EXCEPTION 'too late' USING ERRCODE = '{state}'; END IF; RETURN NULL;"
        " END $$".encode()
    )
    how = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()"
    psql.execute(f"CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON {table} {how}".encode())


@pytest.mark.parametrize("state", ["22003", "23514", "P0001"])
async def test_what_a_deferred_constraint_refuses_is_parked_and_nothing_else(
    agents: Agents, worker: Worker, psql: Psql, log: Log, state: str
) -> None:
    """It stopped its shard, and before that all shards."""
    await flush(worker)
    defer(psql, "change", "NEW.key LIKE 'bad/%'", state)
    shard = agents.keys.shard("bad/1")
    for number in range(3):
        for one in range(agents.keys.shards):
            agents.commit(agents.key_on(one, "good"))
        agents.commit("bad/1" if number == 1 else agents.key_on(shard, "fine"))
    await flush(worker)
    assert sum(flushed(psql).values()) == 3 * (agents.keys.shards + 1)
    assert rows(psql, "SELECT keys, sqlstate, error FROM quarantine") == [(["bad/1"], state, "too late")]
    assert rows(psql, "SELECT count(*) FROM change") == [(3 * agents.keys.shards + 2,)]
    assert rows(psql, "SELECT op, version FROM state WHERE key = 'bad/1'") == [("quarantined", 1)]
    assert [line["keys"] for line in log.of("quarantined")] == [["bad/1"]]
    assert (log.of("not_written"), worker.trouble) == ([], "")


@pytest.mark.parametrize("first", ["fine", "bad"])
async def test_what_satisfies_a_constraint_only_in_the_end_is_not_parked_with_what_does_not(
    agents: Agents, client: AsyncStateCache, worker: Worker, psql: Psql, first: str
) -> None:
    """A check of what has been written so far must not have the rest checked statement by statement."""
    await flush(worker)
    psql.execute(b"ALTER TABLE change ADD CONSTRAINT no_bad CHECK (key NOT LIKE '%/bad%')")
    defer(psql, "change", "NEW.key = 'held/1/a' AND NOT EXISTS (SELECT FROM lock_token)")
    agents.commit(f"held/1/{first}")
    async with client.lock("held/1") as lease:
        await lease.set("held/1/a", 1)
    agents.commit("held/1/bad/last")
    await flush(worker)
    parked = [keys for (keys,) in rows(psql, "SELECT keys FROM quarantine ORDER BY n")]
    assert parked == [["held/1/bad"]] * (first == "bad") + [["held/1/bad/last"]]
    assert rows(psql, "SELECT key FROM change ORDER BY n") == [("held/1/fine",)] * (first == "fine") + [("held/1/a",)]


async def test_a_state_that_a_deferred_constraint_refuses_is_not_marked_and_the_others_are(
    agents: Agents, worker: Worker, psql: Psql
) -> None:
    await flush(worker)
    defer(psql, "state", "NEW.key = 'bad/1/b'")
    agents.commit("bad/1/a", "bad/1/b", "bad/1/c")
    agents.commit("bad/1/d")
    await flush(worker)
    assert rows(psql, "SELECT keys FROM quarantine") == [(["bad/1/a", "bad/1/b", "bad/1/c"],)]
    marked = rows(psql, "SELECT key FROM state WHERE op = 'quarantined' ORDER BY key")
    assert marked == [("bad/1/a",), ("bad/1/c",)]
    assert rows(psql, "SELECT key FROM change") == [("bad/1/d",)]
