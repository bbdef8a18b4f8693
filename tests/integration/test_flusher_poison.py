"""What Postgres refuses, what no commit wrote, what forks: set aside whole, and the shard goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import Settings
from statecache.errors import PostgresUnavailable
from statecache.keys import KeySpace
from statecache_workers.foreign_entries import ENTRIES_PER_PAGE, PAGES_PER_TURN
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import TURNS_S, Agents, Log, MakeWorker, flush, flushed, rows, turn_until
from tests.fixtures.servers import every_redis

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


# Entries of other programs.


@every_redis
async def test_another_programs_entry_is_parked_and_taken_out_and_commits_go_on(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    """Added in the usual way its id is far above ours: no commit can be added behind it."""
    key = agents.key_on(0)
    agents.commit(key)
    stray = redis_raw.xadd(keys.changes(0), {"temperature": "21"})
    assert agents.ask(key)[1] == b"FOREIGN"
    await turn_until(worker, log, "expelled")
    agents.commit(key)
    await flush(worker)
    assert agents.entries(0) == ["1-1", "1-2"]
    assert rows(psql, "SELECT version, gap FROM change ORDER BY version") == [(1, False), (2, False)]
    assert log.of("expelled") == [{"alarm": True, "shard": 0, "entries": 1}]
    milliseconds = int(stray.partition(b"-")[0])
    parked = rows(psql, "SELECT epoch, n, entry FROM quarantine")
    assert parked == [(milliseconds, -1, msgspec.msgpack.encode([b"temperature", b"21"]))]


async def test_however_many_entries_another_program_adds_they_are_taken_out_and_commits_go_on(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    pipe = redis_raw.pipeline(transaction=False)
    many = PAGES_PER_TURN * ENTRIES_PER_PAGE + 1
    for _ in range(many):
        pipe.xadd(keys.changes(0), {"temperature": "21"})
    pipe.execute()
    await turn_until(worker, log, "expelled")
    assert agents.ask(key)[1] == b"FOREIGN", "a turn takes out so many"
    await worker.rest()
    await worker.turn()
    agents.commit(key)
    await flush(worker)
    assert flushed(psql)[0] == 2
    assert agents.entries(0) == ["1-1", "1-2"]
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(many,)]
    assert [line["entries"] for line in log.of("expelled")] == [many - 1, 1]
    assert worker.flusher.counters.quarantined == many


async def test_what_could_not_be_taken_out_is_not_said_to_be(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    stray = redis_raw.xadd(keys.changes(0), {"temperature": "21"})
    psql.execute(b"ALTER TABLE quarantine ADD CONSTRAINT full_up CHECK (false)")
    await turn_until(worker, log, "not_quarantined")
    assert redis_raw.xrange(keys.changes(0), min=stray)
    assert not log.of("expelled")
    assert worker.flusher.counters.quarantined == 0
    psql.execute(b"ALTER TABLE quarantine DROP CONSTRAINT full_up")
    worker.refresh()
    await turn_until(worker, log, "expelled")
    assert agents.commit(key) == "1-2"


async def test_an_entry_in_the_next_place_is_taken_out_too(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    redis_raw.xadd(keys.changes(0), {"x": "1"}, id="1-2")
    redis_raw.xadd(keys.changes(0), {"x": "2"}, id="18446744073709551615-5")
    await turn_until(worker, log, "expelled")
    assert agents.commit(key) == "1-2"
    await flush(worker)
    assert flushed(psql)[0] == 2
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(2,)]


async def test_an_entry_that_looks_newer_where_no_commit_can_be_is_taken_out(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    redis_raw.xadd(keys.changes(0), {"format": "3", "what": "ever"})
    await turn_until(worker, log, "expelled")
    agents.commit(key)
    await flush(worker)
    assert flushed(psql)[0] == 2
    assert not log.of("newer_format")


async def test_a_foreign_entry_that_was_taken_for_a_position_is_parked_in_its_place(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    """Meta has counted it, as after an epoch was opened behind it."""
    key = agents.key_on(0)
    agents.commit(key)
    redis_raw.xadd(keys.changes(0), {"x": "1"}, id="1-2")
    redis_raw.hset(keys.meta(0), "n", 2)
    agents.commit(key)
    await flush(worker)
    assert rows(psql, "SELECT n FROM change ORDER BY n") == [(1,), (3,)]
    assert rows(psql, "SELECT epoch, n, sqlstate FROM quarantine") == [(1, 2, "entry")]
    assert agents.meta(0)["excepted"] == "2"


async def test_an_entry_of_a_newer_release_stops_its_shard_and_nothing_is_parked(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    newer, other = agents.key_on(0), agents.key_on(1)
    agents.commit(newer)
    redis_raw.xadd(keys.changes(0), {"format": "3", "what": "ever"}, id="1-2")
    redis_raw.hset(keys.meta(0), "n", 2)
    agents.commit(other)
    await flush(worker)
    agents.commit(other)
    await flush(worker)
    assert rows(psql, "SELECT (SELECT count(*) FROM quarantine), (SELECT count(*) FROM change)") == [(0, 3)]
    assert flushed(psql)[0] == 1
    assert log.of("newer_format")[0]["alarm"]
    assert rows(psql, "SELECT owner FROM shard WHERE shard = 0") == [(None,)], "a newer worker may take it"


@pytest.mark.parametrize("which", ["meta", "changes", "unflushed"])
async def test_a_key_of_another_type_stops_its_shard_alone_and_is_named(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace, which: str
) -> None:
    foreign, other = agents.key_on(0), agents.key_on(1)
    agents.commit(foreign)
    name = getattr(keys, which)(0)
    held = redis_raw.dump(name)
    redis_raw.set(name, "something else")
    agents.commit(other)
    async with asyncio.timeout(TURNS_S):
        while name not in repr(log.lines) or not rows(psql, "SELECT FROM change WHERE key = %s", other):
            await worker.turn()
            await worker.rest()
    assert which != "changes" or agents.meta(0)["flushed"] == "0"
    redis_raw.restore(name, 0, held, replace=True)
    worker.refresh()
    await flush(worker)
    agents.commit(foreign)
    await flush(worker)
    assert flushed(psql)[0] == 2
    assert agents.meta(0)["flushed"] == "2"


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
