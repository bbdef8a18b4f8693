"""Postgres refuses many changes, one by one: that takes long, and a worker loses neither its lease nor what is done."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.clock import monotonic
from statecache.errors import PostgresUnavailable
from statecache.keys import KeySpace
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache.rules.reconcile import Applied, Tip
from statecache_workers.database import Database
from statecache_workers.quarantine import _mark
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushed, rows
from tests.fixtures.servers import MakeSettings
from tests.support.failed_over import BOUND_S, QUICK, until, working
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause_thread

Psql = psycopg.Connection[Any]

REFUSED = 60
NO_BAD = b"ALTER TABLE change ADD CONSTRAINT no_bad CHECK (key NOT LIKE 'bad/%')"


class Ticking:
    """A clock that goes on by itself, and by so many seconds whenever it is read."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self._ahead = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        self._ahead += self.step_s
        return monotonic() + self._ahead


def parked(psql: Psql) -> int:
    ((count,),) = rows(psql, "SELECT count(*) FROM quarantine")
    return int(count)


def commit_bad(agents: Agents, count: int = REFUSED) -> None:
    """Commit changes of one group that Postgres refuses."""
    for number in range(count):
        agents.commit(f"bad/1/{number}")


async def test_what_has_found_a_place_is_committed_when_the_time_is_up(
    agents: Agents, make_worker: MakeWorker, psql: Psql, log: Log
) -> None:
    clock = Ticking()
    worker = make_worker(monotonic=clock)
    await flush(worker)
    psql.execute(NO_BAD)
    good = {agents.key_on(shard, "good") for shard in range(agents.keys.shards)}
    for key in good:
        agents.commit(key)
    commit_bad(agents)
    clock.step_s = 0.2
    counts = []
    while parked(psql) < REFUSED:
        await worker.turn()
        counts.append(parked(psql))
        told = sum(line.get("more", 1) for line in log.of("quarantined"))
        assert told == counts[-1]  # nothing is told that is not committed
    assert len({*counts}) > 3
    clock.step_s = 0.0
    await flush(worker)
    assert {key for (key,) in rows(psql, "SELECT key FROM change")} == good
    assert sum(flushed(psql).values()) == REFUSED + len(good)
    assert worker.flusher.counters.quarantined == REFUSED


async def test_each_shard_gets_its_turn(agents: Agents, make_worker: MakeWorker, psql: Psql, log: Log) -> None:
    clock = Ticking()
    worker = make_worker(monotonic=clock)
    await flush(worker)
    psql.execute(NO_BAD)
    shards = range(agents.keys.shards)
    keys = [agents.key_on(shard, "bad") for shard in shards]
    for key in keys * 20:
        agents.commit(key)
    clock.step_s = 3.0
    before = flushed(psql)
    for _ in range(30):
        await worker.turn()
        now = flushed(psql)
        assert sum(now[shard] != before[shard] for shard in shards) <= 1  # the first one's piece takes all the time
        before = now
    assert all(before.values())
    assert parked(psql) < 20 * len(shards)
    clock.step_s = 0.0
    await flush(worker)
    assert parked(psql) == 20 * len(shards)
    assert not log.of("unstable")


@pytest.mark.counts_seconds
async def test_two_workers_park_what_takes_longer_than_a_lease(
    agents: Agents, settings: Settings, postgres_proxy: FaultProxy, psql: Psql, log: Log
) -> None:
    """One that loses its lease in the middle is ended by the other, and all that it has done is done again."""
    quick = through(settings.model_copy(update=QUICK), postgres=postgres_proxy)
    workers = [Worker(quick), Worker(quick)]
    psql.execute(NO_BAD)
    commit_bad(agents)
    agents.commit("runs/1")
    postgres_proxy.delay_s = 0.003
    async with working(*workers):
        await until(lambda: parked(psql) == REFUSED and rows(psql, "SELECT key FROM change") == [("runs/1",)])
    for worker in workers:
        await worker.close()
    assert len(log.of("session_ended")) <= 1


async def test_a_batch_that_outlasted_a_lease_is_made_smaller_whatever_has_ended_it(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql, log: Log
) -> None:
    worker = make_worker(settings.model_copy(update=QUICK))
    await flush(worker)
    for number in range(20):
        agents.commit(f"runs/1/{number}")
    with psycopg.connect(settings.postgres_url, autocommit=True) as other:
        name = f"statecache worker {worker.id[-8:]}"
        ended = asyncio.get_running_loop().run_in_executor(None, lambda: _end_what_sleeps(other, name))
        psql.execute(
            b"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            b"$$ BEGIN PERFORM pg_sleep(30); RETURN NULL; END $$"
        )
        psql.execute(b"CREATE TRIGGER slow AFTER INSERT ON change EXECUTE FUNCTION slow()")
        with pytest.raises(PostgresUnavailable, match=r"terminat|closed the connection"):
            await flush(worker)
        await ended
    psql.execute(b"DROP TRIGGER slow ON change")
    (told,) = log.of("batch_too_large")
    assert told["entries"] > told["next_entries_max"]


def _end_what_sleeps(other: Psql, name: str) -> None:
    """End the worker's session once it has slept for longer than its lease."""
    asleep = "application_name = %s AND wait_event = 'PgSleep' AND query_start < now() - interval '1 second'"
    end = monotonic() + BOUND_S
    query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {asleep}"
    while monotonic() < end and not rows(other, query, name):
        pause_thread()


@pytest.mark.parametrize("raised", ["RAISE EXCEPTION 'operator says no'", "ASSERT false"])
async def test_what_a_trigger_refuses_is_parked(agents: Agents, worker: Worker, psql: Psql, raised: str) -> None:
    """It stopped the flush of all shards."""
    psql.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF NEW.key LIKE 'bad/%' THEN {raised}; END IF; RETURN NEW; END $$".encode()
    )
    psql.execute(b"CREATE TRIGGER refuse BEFORE INSERT ON change FOR EACH ROW EXECUTE FUNCTION refuse()")
    commit_bad(agents, 2)
    agents.commit("runs/1")
    await flush(worker)
    assert rows(psql, "SELECT key FROM change") == [("runs/1",)]
    assert {state for (state,) in rows(psql, "SELECT sqlstate FROM quarantine")} <= {"P0001", "P0004"}
    assert parked(psql) == 2


@pytest.mark.parametrize("refused", ["%", "%0", "%/255"])
async def test_keys_whose_states_are_refused_too_are_found_in_few_round_trips(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """One by one they took longer than a lease, of one commit that cannot be parted; and so did halves of it."""
    await flush(worker)
    psql.execute(NO_BAD)
    psql.execute(f"ALTER TABLE state ADD CONSTRAINT no_such CHECK (key NOT LIKE '{refused}')".encode())
    exchange, exchanges = Database.exchange, 0

    async def counted(database: Database, statements: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        return await exchange(database, statements)

    monkeypatch.setattr(Database, "exchange", counted)
    keys = [f"bad/1/{number:03}" for number in range(256)]
    agents.commit(*keys)
    await flush(worker)
    marked = rows(psql, "SELECT key FROM state WHERE op = 'quarantined' ORDER BY key")
    assert marked == [(key,) for key in keys if not key.endswith(refused.strip("%") if refused != "%" else "")]
    assert parked(psql) == 1
    assert exchanges < 30


@pytest.mark.parametrize("raised", ["22003", "23514", "54000", "P0001", "P0004", "", "53100"])
async def test_a_key_whose_state_is_refused_leaves_the_others_theirs(
    agents: Agents, worker: Worker, psql: Psql, raised: str
) -> None:
    """Where Postgres blames the data, in whatever way; what blames the circumstances is waited out."""
    await flush(worker)
    psql.execute(NO_BAD)
    how = f"RAISE EXCEPTION 'no' USING ERRCODE = '{raised}'" if raised else "ASSERT false"
    psql.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF NEW.key = 'bad/1/b' THEN {how}; END IF; RETURN NEW; END $$".encode()
    )
    psql.execute(b"CREATE TRIGGER refuse BEFORE INSERT ON state FOR EACH ROW EXECUTE FUNCTION refuse()")
    agents.commit("bad/1/a", "bad/1/b", "bad/1/c")
    if raised == "53100":
        with pytest.raises(PostgresUnavailable, match="53100"):
            await flush(worker)
        assert parked(psql) == 0
        psql.execute(b"DROP TRIGGER refuse ON state")
    await flush(worker)
    marked = [key for (key,) in rows(psql, "SELECT key FROM state ORDER BY key")]
    assert marked == ["bad/1/a", *["bad/1/b"][: raised == "53100"], "bad/1/c"]


async def test_marks_are_exact_and_what_cannot_be_spelled_unmarks_no_other(worker: Worker, psql: Psql) -> None:
    _, database = await worker.connect()
    at, odd = datetime(2026, 11, 20, 11, 21, 15, 123457, tzinfo=UTC), 'a"\\{}%s\u2028\U0001f600'
    keys = [f"runs/{odd}", "runs/a\0b", "runs/a\ud800b"]
    changes = tuple(
        ChangeRecord(
            change_id=odd, key=key, op="set", version=2**63 - 1, parent_change_id="a\0b", value=b"", encoding="",
            schema="",
        )
        for key in keys
    )  # fmt: skip
    parked_set = ChangeSet(
        position=Position(2**53 + 1, 2**62 + 1), change_id=odd, at=at, writer="a\0b", actor="", reason="", entries=1,
        bytes=1, changes=changes,
    )  # fmt: skip
    async with database.transaction(of_data=True) as transaction:
        tips = await _mark(transaction, 3, [Applied(parked_set, change, False) for change in changes])
        await transaction.commit()
    assert tips == {keys[0]: Tip(2**63 - 1, odd, broken=True)}
    columns = "key, shard, op, value, version, epoch, n, change_id, parent_change_id, writer, updated_at"
    assert rows(psql, f"SELECT {columns} FROM state") == [
        (keys[0], 3, "quarantined", b"", 2**63 - 1, 2**53 + 1, 2**62 + 1, odd, "a\ufffdb", "a\ufffdb", at)
    ]


async def test_a_gap_is_passed_in_parts_when_the_time_is_up(
    agents: Agents, make_worker: MakeWorker, psql: Psql, redis_raw: Any, log: Log
) -> None:
    """Closed as a whole it took longer than a lease, was told anew each time, and its shard never went on."""
    clock, keys = Ticking(), agents.keys
    worker = make_worker(monotonic=clock)
    await flush(worker)
    psql.execute(NO_BAD)
    commit_bad(agents)
    shard, gone = keys.shard("bad/1/0"), [*range(5, REFUSED, 7)]
    redis_raw.xdel(keys.changes(shard), *agents.entries(shard))
    redis_raw.unlink(*(keys.state(f"bad/1/{number}") for number in gone))
    clock.step_s = 0.2
    while flushed(psql)[shard] < REFUSED:
        await worker.turn()
        ((size, excepted),) = rows(psql, "SELECT bytes, excepted FROM shard WHERE shard = %s", shard)
        assert size <= int(agents.meta(shard)["bytes"])
        assert excepted == flushed(psql)[shard]
        assert sum(line.get("more", 1) for line in log.of("quarantined")) == parked(psql)
    told = [(line["first"], line["last"], line["repaired"] + line["lost"]) for line in log.of("gap")]
    assert len(told) > 3
    assert [first for first, _, _ in told] == [1, *(last + 1 for _, last, _ in told[:-1])]
    assert told[-1][1] == REFUSED == sum(count for *_, count in told)
    recorded = rows(psql, "SELECT first_n, last_n, positions, keys FROM lost ORDER BY first_n")
    assert recorded == [(number + 1, number + 1, 1, [f"bad/1/{number}"]) for number in gone]
    assert parked(psql) == REFUSED - len(gone)
    counters, meta = worker.flusher.counters, agents.meta(shard)
    assert (counters.lost, counters.repaired) == (len(gone), REFUSED - len(gone))
    assert (meta["flushed"], meta["flushed_bytes"]) == (meta["n"], meta["bytes"])
    assert (log.of("unstable"), log.of("batch_too_large")) == ([], [])


async def test_a_gap_that_is_put_off_is_told_once(
    make_settings: MakeSettings, make_worker: MakeWorker, redis_raw: Any, log: Log
) -> None:
    """Each time it was told anew, and its shard, of which nothing fitted together, was set apart."""
    settings, clock = make_settings(shards=16), Ticking()
    keys = KeySpace(settings.prefix, settings.shards)
    agents, worker = Agents(settings, keys, redis_raw), make_worker(settings, monotonic=clock)
    path = f"-c search_path={settings.postgres_schema}"
    with psycopg.connect(settings.postgres_url, autocommit=True, options=path) as psql:
        await flush(worker)
        psql.execute(NO_BAD)
        for key in [agents.key_on(shard, "bad") for shard in range(15)] * 20:
            agents.commit(key)
        lost = agents.key_on(15)
        agents.commit(lost)
        redis_raw.xdel(keys.changes(15), *agents.entries(15))
        redis_raw.delete(keys.state(lost))
        clock.step_s = 3.0
        for _ in range(40):
            await worker.turn()
        clock.step_s = 0.0
        await flush(worker)
        assert parked(psql) == 15 * 20
        assert flushed(psql)[15] == 1
    assert (log.of("unstable"), len(log.of("gap"))) == ([], 1)


async def test_a_gap_is_closed_in_batches_of_the_size_that_can_be_written(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, log: Log
) -> None:
    await flush(worker)
    shard = agents.keys.shard("runs/1/0")
    for number in range(40):
        agents.commit(f"runs/1/{number}")
    redis_raw.xdel(agents.keys.changes(shard), *agents.entries(shard))
    worker.flusher.size.too_large(16, 1)
    await flush(worker)
    assert flushed(psql)[shard] == 40
    assert len(log.of("gap")) > 2


@pytest.mark.parametrize("table", ["shard", "worker"])
@pytest.mark.parametrize("state", ["P0001", "23514"])
async def test_what_refuses_the_workers_own_rows_is_an_outage(
    agents: Agents, make_worker: MakeWorker, psql: Psql, table: str, state: str
) -> None:
    """Somebody froze the tables; the worker ended by that."""
    worker = make_worker()
    psql.execute(
        "CREATE FUNCTION frozen() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'frozen' USING ERRCODE = '{state}'; END $$".encode()
    )
    psql.execute(
        f"CREATE TRIGGER frozen BEFORE INSERT OR UPDATE OR DELETE ON {table} EXECUTE FUNCTION frozen()".encode()
    )
    agents.commit("runs/1")
    with pytest.raises(PostgresUnavailable, match="frozen"):
        await flush(worker)
    psql.execute(f"DROP TRIGGER frozen ON {table}".encode())
    await flush(worker)
    assert rows(psql, "SELECT key FROM change") == [("runs/1",)]
    assert parked(psql) == 0


async def test_a_lost_change_whose_id_postgres_cannot_hold_is_recorded(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any
) -> None:
    await flush(worker)
    key = "runs/1"
    shard = agents.keys.shard(key)
    agents.commit(key, change_id="a\0b".ljust(24, "c"))
    agents.commit(key)
    redis_raw.xdel(agents.keys.changes(shard), *agents.entries(shard))
    await flush(worker)
    assert flushed(psql)[shard] == 2
    assert rows(psql, "SELECT change_id FROM lost_change") == [("a\ufffdb".ljust(24, "c"),)]
