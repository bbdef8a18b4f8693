"""Postgres refuses a change for a reason that blames nobody: the other shards go on, and the change is named."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.errors import PostgresUnavailable
from statecache_workers import batch_transactions
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushed, rows, turns
from tests.support.failed_over import QUICK, until, working

Psql = psycopg.Connection[Any]

CODES = ["XX001", "0A000", "40001", "42883", "58P01", "55P03"]
BEFORE, BEHIND = 10, 7


def refuse(
    psql: Psql, state: str, when: str = "BEFORE", of: str = "bad/%", field: str = "key", table: str = "change"
) -> None:
    """Have Postgres refuse changes of such keys, or such rows of another table: at once, or with the COMMIT."""
    psql.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.{field} LIKE '{of}' THEN RAISE EXCEPTION 'broken' USING ERRCODE = '{state}'; END IF; RETURN NEW;"
        " END $$".encode()
    )
    kind = "CREATE TRIGGER" if when == "BEFORE" else "CREATE CONSTRAINT TRIGGER"
    how = "" if when == "BEFORE" else "DEFERRABLE INITIALLY DEFERRED"
    psql.execute(f"{kind} refuse {when} INSERT ON {table} {how} FOR EACH ROW EXECUTE FUNCTION refuse()".encode())


def relent(psql: Psql) -> None:
    """Have Postgres take everything again."""
    psql.execute(b"DROP FUNCTION refuse CASCADE")


def commit_around(agents: Agents, *bad: str) -> str:
    """Commit what is refused among other changes of its shard, and return where it stands."""
    shard = agents.keys.shard(bad[0])
    fine = agents.key_on(shard, "fine")
    for _ in range(BEFORE):
        agents.commit(fine)
    position = agents.commit(*bad, change_id="refused".ljust(24, "d"))
    for _ in range(BEHIND):
        agents.commit(fine)
    return position


async def others_go_on(agents: Agents, worker: Worker, psql: Psql, *, but: int) -> None:
    """Commit to all shards but one, time and again: they are flushed, and of that one what is before the refused."""
    others = [agents.key_on(shard) for shard in range(agents.keys.shards) if shard != but]
    for _ in range(3):
        for key in others:
            agents.commit(key)
        await turns(worker)
    assert flushed(psql) == {agents.keys.shard(key): 3 for key in others} | {but: BEFORE}


def assert_named(log: Log, worker: Worker, event: str, shard: int, *parts: str) -> None:
    """One alarm has named the refused change, and the worker tells the same of itself."""
    (told,) = log.of(event)
    assert told["alarm"]
    assert told["shard"] == shard
    for part in (*parts, "refused".ljust(24, "d"), "broken"):
        assert part in told["reason"]
    assert f"shard {shard}: {told['reason']}" in worker.trouble


@pytest.mark.parametrize(("state", "when"), [*((code, "BEFORE") for code in CODES), ("XX001", "AFTER")])
async def test_a_change_that_is_refused_holds_up_its_own_shard_alone_and_is_named(
    agents: Agents, worker: Worker, psql: Psql, log: Log, state: str, when: str
) -> None:
    await flush(worker)
    refuse(psql, state, when)
    bad = "bad/1"
    position = commit_around(agents, bad, "bad/1/more")
    shard = agents.keys.shard(bad)
    await others_go_on(agents, worker, psql, but=shard)
    assert_named(log, worker, "not_written", shard, position, bad, state)
    assert log.of("unstable") == log.of("quarantined") == []
    relent(psql)
    worker.refresh()
    await flush(worker)
    assert flushed(psql)[shard] == BEFORE + 1 + BEHIND
    assert worker.trouble == ""
    agents.commit(bad)
    await flush(worker)
    assert rows(psql, "SELECT version FROM change WHERE key = %s ORDER BY n", bad) == [(1,), (2,)]


async def test_what_refuses_all_is_an_outage_which_names_a_change(
    agents: Agents, worker: Worker, psql: Psql, log: Log
) -> None:
    await flush(worker)
    refuse(psql, "XX001", of="%")
    for shard in range(agents.keys.shards):
        agents.commit(agents.key_on(shard))
        agents.commit(agents.key_on(shard))
    for _ in range(3):
        with pytest.raises(PostgresUnavailable, match=r"the change at 1-1 \(.*, runs/.*XX001.*broken"):
            await worker.turn()
    assert log.of("not_written") == []
    relent(psql)
    await flush(worker)
    assert set(flushed(psql).values()) == {2}


async def test_what_stands_before_it_is_flushed_where_no_other_shard_has_anything(
    agents: Agents, worker: Worker, psql: Psql, log: Log
) -> None:
    await flush(worker)
    refuse(psql, "XX001")
    commit_around(agents, "bad/1")
    await turns(worker)
    assert flushed(psql)[agents.keys.shard("bad/1")] == BEFORE
    assert len(log.of("not_written")) == 1


async def test_a_gap_that_cannot_be_closed_holds_up_its_own_shard_alone(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, log: Log
) -> None:
    await flush(worker)
    refuse(psql, "XX001")
    shard = agents.keys.shard("bad/1")
    agents.commit("bad/1")
    agents.commit("bad/1/more")
    redis_raw.xdel(agents.keys.changes(shard), *agents.entries(shard))
    other = agents.key_on((shard + 1) % agents.keys.shards)
    for number in range(3):
        agents.commit(other)
        await turns(worker, 5)
        assert flushed(psql)[agents.keys.shard(other)] == number + 1
    assert flushed(psql)[shard] == 0
    assert "bad/1" in log.of("not_written")[0]["reason"]
    relent(psql)
    worker.refresh()
    await flush(worker)
    assert flushed(psql)[shard] == 2


@pytest.mark.parametrize("when", ["BEFORE", "AFTER"])
async def test_a_change_that_cannot_be_parked_holds_up_its_own_shard_alone_and_is_named_once(
    agents: Agents, worker: Worker, psql: Psql, log: Log, when: str
) -> None:
    """Each attempt with fewer changes told of it, and of all shards of the batch."""
    await flush(worker)
    psql.execute(b"ALTER TABLE change ADD CONSTRAINT no_bad CHECK (key NOT LIKE 'bad/%')")
    refuse(psql, "P0001", when, of="%", field="change_id", table="quarantine")
    position, shard = commit_around(agents, "bad/1"), agents.keys.shard("bad/1")
    await others_go_on(agents, worker, psql, but=shard)
    assert_named(log, worker, "not_quarantined", shard, position, "bad/1", "P0001", "cannot be parked")
    assert log.of("not_written") == log.of("unstable") == log.of("quarantined") == []
    relent(psql)
    worker.refresh()
    await flush(worker)
    assert flushed(psql)[shard] == BEFORE + 1 + BEHIND
    assert rows(psql, "SELECT keys FROM quarantine") == [(["bad/1"],)]


async def test_what_cannot_be_parked_where_nothing_is_taken_is_an_outage_that_names_it(
    agents: Agents, worker: Worker, psql: Psql, log: Log
) -> None:
    await flush(worker)
    psql.execute(b"ALTER TABLE change ADD CONSTRAINT no_bad CHECK (key NOT LIKE 'bad/%')")
    refuse(psql, "P0001", of="%", field="change_id", table="quarantine")
    for _ in range(BEHIND):
        agents.commit("bad/1")
    with pytest.raises(PostgresUnavailable, match=r"the change at 1-1 \(.*, bad/1\) is refused: P0001, .*broken"):
        await flush(worker)
    (told,) = log.of("not_quarantined")
    assert told["shard"] == agents.keys.shard("bad/1")


async def test_of_a_gap_what_stands_before_it_is_flushed_and_told_once(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, log: Log
) -> None:
    await flush(worker)
    refuse(psql, "XX001")
    keys = ["bad/0", *("bad/0/" + str(number) for number in range(BEFORE))]
    shard = agents.keys.shard("bad/0")
    fine = [agents.key_on(shard, f"fine{number}") for number in range(BEFORE)]
    for key in [*fine, "bad/0", *keys[1:]]:
        agents.commit(key)
    redis_raw.xdel(agents.keys.changes(shard), *agents.entries(shard))
    await turns(worker)
    assert flushed(psql)[shard] == BEFORE
    assert "bad/0" in log.of("not_written")[0]["reason"]
    relent(psql)
    worker.refresh()
    await flush(worker)
    told = [(line["first"], line["last"]) for line in log.of("gap")]
    assert [first for first, _ in told] == [1, *(last + 1 for _, last in told[:-1])]
    assert told[-1][1] == flushed(psql)[shard] == BEFORE + len(keys)
    assert rows(psql, "SELECT count(*) FROM change") == [(BEFORE + len(keys),)]


async def test_what_was_not_committed_is_not_told_as_parked(
    agents: Agents, worker: Worker, psql: Psql, log: Log
) -> None:
    """Each COMMIT that was refused told of it again."""
    await flush(worker)
    psql.execute(b"ALTER TABLE change ADD CONSTRAINT no_bad CHECK (key NOT LIKE 'bad/%')")
    refuse(psql, "XX001", "AFTER", of="late/%")
    bad, late = agents.key_on(0, "bad"), agents.key_on(1, "late")
    agents.commit(bad)
    agents.commit(late)
    await turns(worker, 5)
    assert rows(psql, "SELECT keys FROM quarantine") == [([bad],)]
    assert [line["keys"] for line in log.of("quarantined")] == [[bad]]


async def test_a_suspected_shard_is_written_by_itself_and_the_others_together(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_transactions, "_PAUSE", 0)
    await flush(worker)
    refuse(psql, "XX001")
    shard = agents.keys.shard("bad/1")
    others = {one: agents.key_on(one) for one in range(agents.keys.shards) if one != shard}
    commit_around(agents, "bad/1")
    for key in others.values():
        agents.commit(key)
    await turns(worker)
    together: list[set[int]] = []
    write = worker.flusher.batches._write_at_once

    async def noted(database: Any, slices: Any, server: str) -> Any:
        together.append({one.shard for one in slices})
        return await write(database, slices, server)

    monkeypatch.setattr(worker.flusher.batches, "_write_at_once", noted)
    for key in others.values():
        agents.commit(key)
    await turns(worker, 1)
    assert together == [set(others), {shard}]


async def test_the_leases_are_kept_where_every_attempt_takes_long(
    agents: Agents, make_worker: MakeWorker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards take turns: what is left comes with the next batches."""
    later, pieces = 0.0, list[int]()
    worker = make_worker(monotonic=lambda: later)
    await flush(worker)
    refuse(psql, "XX001")
    agents.commit(agents.key_on(0, "bad"))
    for key in (others := [agents.key_on(shard) for shard in range(1, agents.keys.shards)]):
        agents.commit(key)
    write, write_all = worker.flusher.batches._write_piece, worker.flusher.batches.write

    async def slow(*given: Any) -> Any:
        nonlocal later
        later += worker.settings.lease_renew_s * 2
        pieces[-1] += 1
        return await write(*given)

    async def counted(*given: Any) -> Any:
        pieces.append(0)
        return await write_all(*given)

    monkeypatch.setattr(worker.flusher.batches, "_write_piece", slow)
    monkeypatch.setattr(worker.flusher.batches, "write", counted)
    await turns(worker, 60)
    assert flushed(psql) == {agents.keys.shard(key): 1 for key in others} | {0: 0}
    assert max(pieces) <= 2  # one of the suspected, one of the others


class Slow:
    """Attempts to write a shard, each of which takes long on a worker's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, make_worker: MakeWorker) -> None:
        self.now, self.takes_s, self.shard = 0.0, 0.0, -1
        self.attempts: list[int] = []
        """How many there were in each batch."""
        self.apart_meanwhile: list[bool] = []
        self.worker = make_worker(monotonic=lambda: self.now)
        batches = self.worker.flusher.batches
        self._write, self._write_at_once = batches.write, batches._write_at_once
        monkeypatch.setattr(batches, "write", self._counted)
        monkeypatch.setattr(batches, "_write_at_once", self._slowed)

    async def _counted(self, *given: Any) -> Any:
        self.attempts.append(0)
        return await self._write(*given)

    async def _slowed(self, database: Any, slices: Any, server: str) -> Any:
        if any(one.shard == self.shard for one in slices):
            self.attempts[-1] += 1
            self.now += self.takes_s
            self.apart_meanwhile.append(self.shard in self.worker.apart)
        return await self._write_at_once(database, slices, server)


async def test_a_refusal_that_takes_long_costs_the_others_little(
    agents: Agents, make_worker: MakeWorker, psql: Psql, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    slow = Slow(monkeypatch, make_worker)
    await flush(slow.worker)
    refuse(psql, "XX001")
    position = commit_around(agents, "bad/1")
    slow.shard, slow.takes_s = agents.keys.shard("bad/1"), slow.worker.settings.lease_renew_s * 2
    others = [agents.key_on(shard) for shard in range(agents.keys.shards) if shard != slow.shard]
    for turn in range(40):
        for key in others:
            agents.commit(key)
        await turns(slow.worker, 1)
        slow.now += 10 * slow.takes_s if turn < 20 else 0.0
    assert max(slow.attempts) <= 2  # together with the others, and by itself
    assert [position in line["reason"] for line in log.of("not_written")] == [True]
    assert slow.attempts[-10:] == [0] * 10
    assert flushed(psql) == {agents.keys.shard(key): 40 for key in others} | {slow.shard: BEFORE}
    slow.now += 10 * slow.takes_s
    slow.apart_meanwhile.clear()
    await turns(slow.worker, 1)
    assert slow.attempts[-1] == 1
    assert slow.apart_meanwhile == [True]  # as metrics and status have it


async def test_a_worker_that_gives_such_a_shard_up_says_why(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql, log: Log
) -> None:
    """It said nothing: what it had found was forgotten as its leases were looked at."""
    quick = settings.model_copy(update=QUICK)
    both = make_worker(quick), make_worker(quick)
    refuse(psql, "XX001")
    async with working(*both):
        await until(lambda: all(one.holdings for one in both))
        position = commit_around(agents, "bad/1")
        others = [agents.key_on(shard) for shard in range(agents.keys.shards)]

        def given_up() -> list[dict[str, Any]]:
            for key in others:
                agents.commit(key)
            return log.of("given_up")

        await until(given_up)
    assert all(position in line["reason"] for line in log.of("given_up"))
