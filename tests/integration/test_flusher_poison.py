"""What Postgres refuses, and what forks: set aside whole, and the shard goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
import pytest

from statecache import Settings
from statecache.errors import PostgresUnavailable
from statecache.keys import KeySpace
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushed, rows

Psql = psycopg.Connection[Any]
NUL = "a\0b"


async def test_poison_is_bisected_parked_raw_and_everything_else_is_flushed(
    agents: Agents, worker: Worker, psql: Psql, log: Log
) -> None:
    for i in range(40):
        agents.commit((f"runs/{i}", f"v{i}"), **({"reason": NUL} if i in (7, 8, 31) else {}))
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change") == [(37,)]
    parked = rows(psql, "SELECT keys, sqlstate, entry FROM quarantine ORDER BY keys")
    assert [(keys, state) for keys, state, _ in parked] == [
        (["runs/31"], "22021"),
        (["runs/7"], "22021"),
        (["runs/8"], "22021"),
    ]
    fields = msgspec.msgpack.decode(parked[1][2])
    raw = dict(zip(fields[::2], fields[1::2], strict=True))
    assert (raw[b"key1"], raw[b"value1"], raw[b"reason"]) == (b"runs/7", b"v7", b"a\0b")
    assert sum(flushed(psql).values()) == 40
    assert len(log.of("quarantined")) == 3
    assert all(line["alarm"] for line in log.of("quarantined"))


async def test_behind_a_quarantined_change_the_chain_goes_on_and_shows_the_gap(
    agents: Agents, worker: Worker, psql: Psql
) -> None:
    agents.commit("runs/1")
    agents.commit("runs/1", reason=NUL, change_id="b" * 24)
    await flush(worker)
    assert rows(psql, "SELECT op, version, change_id FROM state") == [("quarantined", 2, "b" * 24)]
    agents.commit("runs/1")
    agents.commit("runs/1")
    await flush(worker)
    assert rows(psql, "SELECT version, gap FROM change ORDER BY version") == [(1, False), (3, True), (4, False)]
    assert rows(psql, "SELECT op, version FROM state") == [("set", 4)]


async def test_poison_and_what_follows_it_may_share_a_batch(agents: Agents, worker: Worker, psql: Psql) -> None:
    await flush(worker)
    for i in range(9):
        agents.commit(("runs/1", str(i)), **({"writer": NUL} if i in (0, 4, 5) else {}))
    await flush(worker)
    assert rows(
        psql, "SELECT array_agg(version ORDER BY version), array_agg(version) FILTER (WHERE gap) FROM change"
    ) == [([2, 3, 4, 7, 8, 9], [2, 7])]


async def test_a_poisonous_change_set_is_parked_as_a_whole(agents: Agents, worker: Worker, psql: Psql) -> None:
    agents.commit("runs/1/a", "runs/1/b", reason=NUL)
    agents.commit("runs/1/a", "runs/1/c")
    await flush(worker)
    assert rows(psql, "SELECT key, gap FROM change ORDER BY key") == [("runs/1/a", True), ("runs/1/c", False)]
    assert rows(psql, "SELECT key FROM state WHERE op = 'quarantined'") == [("runs/1/b",)]
    assert rows(psql, "SELECT keys FROM quarantine") == [(["runs/1/a", "runs/1/b"],)]


async def test_waiters_are_told_of_an_exception(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(1)
    await flush(worker)
    listener = redis_raw.pubsub()
    listener.ssubscribe(keys.events(1))
    assert listener.get_message(timeout=30)["type"] == "ssubscribe"
    agents.commit(key, reason=NUL)
    agents.commit(key)
    await flush(worker)
    assert listener.get_message(timeout=30)["data"].startswith(b"1 2 1 ")
    assert agents.meta(1)["excepted"] == "1"
    assert rows(psql, "SELECT excepted FROM shard WHERE shard = 1") == [(1,)]
    listener.close()


async def test_a_key_that_postgres_cannot_hold_is_parked_with_its_successors(
    agents: Agents, worker: Worker, psql: Psql
) -> None:
    """The client refuses such keys; whoever writes past it does not stop the shard."""
    bad, good = "runs/1/a\0b", "runs/1/c"
    agents.commit(bad)
    agents.commit(good)
    agents.commit(bad)
    await flush(worker)
    assert rows(psql, "SELECT key FROM state") == [(good,)]
    assert rows(psql, "SELECT count(*), min(keys[1]) FROM quarantine") == [(2, "runs/1/a\ufffdb")]


async def test_a_key_in_another_shards_stream_is_parked(agents: Agents, worker: Worker, psql: Psql, log: Log) -> None:
    """A client with another shard count, say: two owners must never write one key."""
    home, stranger = agents.key_on(0), agents.key_on(1)
    agents.commit(home, stranger)
    agents.commit(home)
    await flush(worker)
    assert log.of("quarantined")[0]["reason"] == "its key belongs to shard 1"
    assert rows(psql, "SELECT key, version, gap FROM change") == [(home, 2, True)]


async def test_a_key_in_another_shards_stream_is_parked_though_its_tip_is_remembered(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace, settings: Settings
) -> None:
    home, stranger = agents.key_on(0), agents.key_on(1)
    agents.commit(home)
    await flush(worker)
    agents.commit(stranger, home)
    agents.commit(home)
    await flush(worker)
    assert log.of("quarantined")[0]["reason"] == "its key belongs to shard 0"
    assert rows(psql, "SELECT shard, version FROM change WHERE key = %s ORDER BY version", home) == [(0, 1), (0, 3)]
    assert (await verify(settings))[1] == [], "the gap is known, though what was parked is in another shard"


async def test_a_violated_constraint_parks_only_the_change_that_violates_it(
    agents: Agents, worker: Worker, psql: Psql
) -> None:
    psql.execute("ALTER TABLE change ADD CHECK (octet_length(value) < 10)")
    for i in range(10):
        agents.commit((f"runs/{i}", "x" * (3 + i)))
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change") == [(7,)]
    assert rows(psql, "SELECT count(*), min(sqlstate) FROM quarantine") == [(3, "23514")]


async def test_while_poison_is_parked_an_outage_parks_nothing(agents: Agents, worker: Worker, psql: Psql) -> None:
    await flush(worker)
    psql.execute("ALTER TABLE quarantine RENAME TO away")
    agents.commit("runs/1", reason=NUL)
    agents.commit("runs/1")
    with pytest.raises(PostgresUnavailable):
        await flush(worker)
    assert sum(flushed(psql).values()) == 0
    psql.execute("ALTER TABLE away RENAME TO quarantine")
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(1,)]


async def test_what_cannot_even_be_parked_stops_the_flush_with_an_alarm(
    agents: Agents, worker: Worker, psql: Psql, log: Log
) -> None:
    await flush(worker)
    psql.execute("ALTER TABLE quarantine ADD CONSTRAINT full_up CHECK (false)")
    agents.commit("runs/1", reason=NUL)
    with pytest.raises(PostgresUnavailable):
        await flush(worker)
    assert log.of("not_quarantined")[0]["alarm"]
    assert sum(flushed(psql).values()) == 0
    psql.execute("ALTER TABLE quarantine DROP CONSTRAINT full_up")
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(1,)]


# Forks.


async def test_a_broken_assume_new_and_its_descendants_become_conflicts_and_the_truth_stands(
    agents: Agents, make_worker: MakeWorker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace, settings: Settings
) -> None:
    """A durable key at version 4 is gone from Redis; somebody vouches that it is new, and goes on to version 7."""
    worker = make_worker(settings.model_copy(update={"flush_batch_max": 3}))
    for i in range(4):
        agents.commit(("runs/1", f"truth {i}"))
    await flush(worker)
    redis_raw.delete(keys.state("runs/1"))
    for i in range(7):
        agents.commit(("runs/1", f"fork {i}"))
    await flush(worker)
    assert rows(psql, "SELECT version, value FROM state") == [(4, b"truth 3")]
    assert rows(psql, "SELECT count(*) FROM change") == [(4,)]
    assert rows(psql, "SELECT array_agg(version ORDER BY version) FROM conflict") == [([1, 2, 3, 4, 5, 6, 7],)]
    assert not redis_raw.exists(keys.state("runs/1")), "it is hydrated again with the truth"
    assert log.of("forked")[0]["alarm"]


async def test_a_fork_that_was_written_again_meanwhile_is_left_for_the_next_flush(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.commit("runs/1")
    await flush(worker)
    redis_raw.delete(keys.state("runs/1"))
    agents.commit("runs/1")
    write = worker.flusher.batches.write

    async def written_again(*args: Any) -> Any:
        monkeypatch.undo()
        done = await write(*args)
        agents.commit("runs/1")
        return done

    monkeypatch.setattr(worker.flusher.batches, "write", written_again)
    await worker.turn()
    assert redis_raw.exists(keys.state("runs/1"))
    await flush(worker)
    assert not redis_raw.exists(keys.state("runs/1"))
    assert rows(psql, "SELECT count(*) FROM conflict") == [(2,)]


async def test_a_change_set_with_one_fork_forks_as_a_whole(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    agents.commit("runs/1", "runs/1/a")
    await flush(worker)
    redis_raw.delete(keys.state("runs/1"))
    agents.commit("runs/1", "runs/1/a", "runs/1/b")
    await flush(worker)
    assert rows(psql, "SELECT key, cause FROM conflict ORDER BY key") == [
        ("runs/1", "behind"),
        ("runs/1/a", "companion"),
        ("runs/1/b", "companion"),
    ]
    assert not any(redis_raw.exists(keys.state(key)) for key in ("runs/1", "runs/1/a", "runs/1/b"))
    assert rows(psql, "SELECT key, version FROM state ORDER BY key") == [("runs/1", 1), ("runs/1/a", 1)]
