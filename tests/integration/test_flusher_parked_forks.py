"""Forks that Postgres refuses for their data: they are parked, and nothing that descends from them is truth."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, rows

Psql = psycopg.Connection[Any]
NUL = "a\0b"
TRUTH = 2


async def forked(agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace, *reasons: str) -> None:
    """Make two durable changes of a key, have Redis lose it, and commit a fork: a change for each reason."""
    for i in range(TRUTH):
        agents.commit(("runs/1", f"truth {i}"))
    await flush(worker)
    redis_raw.delete(keys.state("runs/1"))
    for i, reason in enumerate(reasons):
        agents.commit(("runs/1", f"fork {i}"), reason=reason)


@pytest.mark.parametrize("batch", [1, 2, 100])
@pytest.mark.parametrize("parked", [1, 2, 3, 4], ids="refused at {}".format)
async def test_a_fork_does_not_overtake_the_truth_behind_one_of_its_changes_that_is_parked(
    agents: Agents, make_worker: MakeWorker, psql: Psql, redis_raw: Any, keys: KeySpace, settings: Settings,
    parked: int, batch: int,
) -> None:  # fmt: skip
    """What is behind it names it as its parent, is further on than the truth, and is no gap."""
    worker = make_worker(settings.model_copy(update={"flush_batch_max": batch}))
    reasons = [NUL if version == parked else "" for version in range(1, 7)]
    await forked(agents, worker, redis_raw, keys, *reasons)
    await flush(worker)
    assert rows(psql, "SELECT version, value, op FROM state") == [(TRUTH, b"truth 1", "set")]
    assert rows(psql, "SELECT array_agg(version ORDER BY version) FROM change") == [([1, 2],)]
    assert rows(psql, "SELECT array_agg(version ORDER BY version) FROM conflict") == [
        ([version for version in range(1, 7) if version != parked],)
    ]
    assert rows(psql, "SELECT keys, forked FROM quarantine") == [(["runs/1"], True)]
    assert not redis_raw.exists(keys.state("runs/1")), "it is hydrated again with the truth"


async def test_what_is_parked_at_the_end_of_a_fork_goes_from_redis(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    await forked(agents, worker, redis_raw, keys, "", "", NUL)
    await flush(worker)
    assert not redis_raw.exists(keys.state("runs/1"))
    assert len(log.of("quarantined")) == 1
    assert [line["cause"] for line in log.of("forked")] == ["behind", "behind", "sibling"]
    agents.commit(("runs/2", "other"))
    await flush(worker)
    assert rows(psql, "SELECT key, version FROM state ORDER BY key") == [("runs/1", 2), ("runs/2", 1)]


async def test_a_parked_fork_of_several_keys_marks_none_of_them(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    """One key forks, so all do: the other goes on from its truth, and what descends from the fork is a fork."""
    agents.commit("runs/1/a", "runs/1/b")
    await flush(worker)
    redis_raw.delete(keys.state("runs/1/a"))
    agents.commit("runs/1/a", "runs/1/b", "runs/1/c", reason=NUL)
    agents.commit(("runs/1/b", "fork"))
    agents.commit(("runs/1/c", "fork"))
    await flush(worker)
    assert rows(psql, "SELECT key, version, op FROM state ORDER BY key") == [
        ("runs/1/a", 1, "set"),
        ("runs/1/b", 1, "set"),
    ]
    assert rows(psql, "SELECT key, cause FROM conflict ORDER BY key") == [
        ("runs/1/b", "descendant"),
        ("runs/1/c", "descendant"),
    ]
    assert not any(redis_raw.exists(keys.state(f"runs/1/{name}")) for name in "abc")


async def test_a_fork_that_was_dropped_or_cannot_be_retried_stays_a_fork(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await forked(agents, worker, redis_raw, keys, "", "", NUL)
    held = redis_raw.dump(keys.state("runs/1"))
    await flush(worker)
    psql.execute("UPDATE quarantine SET sqlstate = 'dropped'")
    redis_raw.restore(keys.state("runs/1"), 0, held, replace=True)
    agents.commit(("runs/1", "fork goes on"))
    await flush(worker)
    assert rows(psql, "SELECT version, value FROM state") == [(TRUTH, b"truth 1")]
    assert rows(psql, "SELECT array_agg(version ORDER BY version) FROM conflict") == [([1, 2, 4],)]


async def test_of_a_parked_change_that_postgres_cannot_be_asked_about_nothing_is_decided(
    agents: Agents, worker: Worker, psql: Psql
) -> None:
    """Its change_id is no text: it marks nothing, and what is behind it, which names it, cannot be held either."""
    agents.commit(("runs/1", "one"))
    agents.commit(("runs/1", "two"), change_id="b" * 23 + NUL[1])
    agents.commit(("runs/1", "three"))
    await flush(worker)
    assert rows(psql, "SELECT op, version FROM state") == [("set", 1)]
    assert rows(psql, "SELECT n, forked FROM quarantine ORDER BY n") == [(2, False), (3, False)]


async def test_an_opening_deletes_what_is_parked_as_a_fork(cache: AsyncStateCache, psql: Psql) -> None:
    """Its end may not have reached Redis; a change that is parked and continued its chain stays."""
    shard = cache._runtime.keys.shard("runs/1")
    for n, (key, is_fork) in enumerate((("runs/1", True), ("runs/2", False), ("runs/3", True)), start=4):
        psql.execute(
            "INSERT INTO quarantine (shard, epoch, n, change_id, keys, entry, sqlstate, error, forked) "
            "VALUES (%s, 1, %s, %s, %s, '', '22021', '', %s)",
            [shard, n, f"of {key}", [key, f"{key}/b"], is_fork],
        )
    between = {"shard": shard, "after": 3, "last": 5, "most": 10}
    found = await cache._runtime.postgres.fetch("forks_between", between, seconds=5)
    assert found == [("runs/1", "of runs/1", 4), ("runs/1/b", "of runs/1", 4)]
