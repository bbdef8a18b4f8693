"""A database that an earlier release filled is packed by workers at work, and every value stays what it was."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.core.history.values import HistoryValues, VersionAt
from statecache.core.postgres.migrate import migrate
from statecache.entries import change_set
from statecache.rules import packing as rule
from statecache_workers import packing
from statecache_workers.database import Database
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushing, rows, turn_until
from tests.fixtures.servers import MakeSettings
from tests.support.earlier_schemas import migrated_until
from tests.support.polling import pause

Psql = psycopg.Connection[Any]
EARLIER = 10
"""The last migration of the earlier release."""
LEFT = "SELECT count(*) FROM shard WHERE hashed < flushed"
UNHASHED = "SELECT count(*) FROM change WHERE hash IS NULL"


@pytest.fixture
async def settings(make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A deployment with the schema of an earlier release."""
    return await migrated_until(EARLIER, make_settings, monkeypatch)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few changes, and a look for more at every turn."""
    monkeypatch.setattr(packing, "ROWS", 7)
    monkeypatch.setattr(packing, "BYTES", 9000)
    monkeypatch.setattr(packing, "LOOK_S", 0.1)


def text(number: int, times: int = 60) -> str:
    return " ".join(f"{n * number % 9973}" for n in range(times))


def told_by(agents: Agents, *, rounds: int = 14) -> None:
    """Commit what several agents do side by side: long and short values, deletes, recreations, commits of many keys."""
    for number in range(rounds):
        for run in range(3):
            messages = f'{{"log": "{text(run + 2, 200)}", "last": "{text(number + 3, 5)}"}}'
            agents.commit({"key": f"runs/{run}", "value": messages}, actor="ada", reason=f"step {number}")
        part = {"key": "runs/0/part", "value": f'"{number}"'}
        agents.commit({"key": "runs/0", "value": f'"{text(number + 1)}"'}, part)
    agents.commit({"key": "runs/1", "op": "delete", "value": ""})
    agents.commit({"key": "runs/1", "value": '"anew"'})
    agents.commit({"key": "runs/2", "value": f'"{text(5)}"'})


UPSERT = """INSERT INTO state VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (key) DO UPDATE SET op = excluded.op, value = excluded.value, version = excluded.version,
        epoch = excluded.epoch, n = excluded.n, change_id = excluded.change_id,
        parent_change_id = excluded.parent_change_id, encoding = excluded.encoding, schema = excluded.schema,
        writer = excluded.writer, updated_at = excluded.updated_at"""


def flushed_by_an_earlier_release(agents: Agents, psql: Psql) -> None:
    """Write what the streams hold as a worker of the earlier release did."""
    for shard in range(agents.keys.shards):
        ((flushed,),) = rows(psql, "SELECT flushed FROM shard WHERE shard = %s", shard)
        for entry_id, fields in agents.raw.xrange(agents.keys.changes(shard), min=f"(1-{flushed}"):
            commit = change_set(entry_id, [part for pair in fields.items() for part in pair])
            for one in commit.changes:
                row = (
                    one.key, one.version, one.change_id, one.parent_change_id, shard, *commit.position, one.op,
                    one.value, one.encoding, one.schema, commit.writer, commit.actor, commit.reason, False, commit.at,
                )  # fmt: skip
                psql.execute(f"INSERT INTO change VALUES ({', '.join(['%s'] * len(row))})".encode(), row)
                state = (
                    one.key, shard, one.op, one.value, one.version, *commit.position, one.change_id,
                    one.parent_change_id, one.encoding, one.schema, commit.writer, commit.at,
                )  # fmt: skip
                psql.execute(UPSERT, state)
            psql.execute(
                "UPDATE shard SET flushed = %s, entries = %s, bytes = %s WHERE shard = %s",
                (commit.position.n, commit.entries, commit.bytes, shard),
            )


Values = dict[tuple[str, int], bytes]


def values_of(psql: Psql) -> Values:
    """Return the values of an earlier release's changes."""
    return {(key, version): value for key, version, value in rows(psql, "SELECT key, version, value FROM change")}


async def read(cache: AsyncStateCache, psql: Psql) -> Values:
    """Return the values of all changes, as readers get them."""
    asked = [VersionAt(*row) for row in rows(psql, "SELECT key, version FROM change")]
    found = await HistoryValues(cache._runtime.postgres.fetch).read(asked, seconds=30)
    return {(place.key, place.version): value for place, value in found.items() if value is not None}


async def turns(worker: Worker) -> None:
    while True:
        await worker.turn()


async def until_packed(psql: Psql) -> None:
    async with asyncio.timeout(60):
        while rows(psql, LEFT) != [(0,)]:
            await pause()


async def test_workers_pack_what_was_there_while_agents_go_on(
    settings: Settings, cache: AsyncStateCache, agents: Agents, worker: Worker, psql: Psql, small: None
) -> None:
    told_by(agents)
    flushed_by_an_earlier_release(agents, psql)
    before = values_of(psql)
    assert (await migrate(settings)).applied[0].startswith("0011")
    over = False

    async def agents_go_on() -> int:
        number = 0
        while not over:
            number += 1
            await cache.set(f"runs/{number % 4}", {"log": text(9, 200), "number": number})
            await pause()
        return number

    async with flushing(worker):
        work = asyncio.create_task(agents_go_on())
        async with asyncio.timeout(60):
            while rows(psql, "SELECT count(*) FROM shard WHERE hashed > 0") == [(0,)]:
                await pause()
            await until_packed(psql)
        over = True
        assert await work > 0
    await flush(worker)
    found = await read(cache, psql)
    assert {place: found[place] for place in before} == before
    assert len(found) > len(before)
    assert rows(psql, UNHASHED) == rows(psql, LEFT) == [(0,)]
    counts, faults = await verify(settings)
    assert faults == []
    assert (counts.unhashed, counts.changes) == (0, len(found))
    assert worker.janitor.packing.packed == len(before)
    stored = dict(rows(psql, "SELECT key, sum(octet_length(coalesce(packed, value))) FROM change GROUP BY 1"))
    plain = {key: sum(len(value) for (of, _), value in found.items() if of == key) for key in stored}
    assert stored["runs/2"] * 5 < plain["runs/2"]


@pytest.mark.parametrize("moment", range(1, 11))
async def test_a_worker_that_is_killed_at_any_moment_of_it_loses_nothing(
    settings: Settings, cache: AsyncStateCache, agents: Agents, make_worker: MakeWorker, psql: Psql, small: None,
    monkeypatch: pytest.MonkeyPatch, moment: int,
) -> None:  # fmt: skip
    told_by(agents, rounds=6)
    flushed_by_an_earlier_release(agents, psql)
    before = values_of(psql)
    await migrate(settings)
    worker = make_worker()
    await flush(worker)
    left, exchange, commit = moment, Database.exchange, Database.commit

    async def die(database: Database) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            await database.close()
            raise asyncio.CancelledError

    async def dies_before(database: Database, statements: list[Any]) -> list[Any]:
        if any("hashed" in text or "FOR UPDATE" in text for text, _ in statements):
            await die(database)
        return await exchange(database, statements)

    async def dies_behind(database: Database, statements: Any = ()) -> None:
        await commit(database, statements)
        await die(database)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "exchange", dies_before)
        patch.setattr(Database, "commit", dies_behind)
        with pytest.raises(asyncio.CancelledError):
            await turns(worker)
    assert await read(cache, psql) == before
    assert (await verify(settings))[1] == []
    psql.execute("UPDATE shard SET owner = NULL; DELETE FROM worker")
    agents.commit({"key": "runs/1", "value": '"more"'})
    another = make_worker()
    async with flushing(another):
        await until_packed(psql)
    await flush(another)
    found = await read(cache, psql)
    assert {place: found[place] for place in before} == before
    assert len(found) == len(before) + 1
    assert rows(psql, UNHASHED) == [(0,)]
    assert (await verify(settings))[1] == []


async def test_what_is_taken_out_of_quarantine_behind_the_page_that_was_read_is_packed_too(
    settings: Settings, cache: AsyncStateCache, agents: Agents, worker: Worker, psql: Psql, small: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(packing, "ROWS", 500)
    monkeypatch.setattr(packing, "BYTES", 1 << 20)
    told_by(agents, rounds=6)
    flushed_by_an_earlier_release(agents, psql)
    before = values_of(psql)
    await migrate(settings)
    here, behind = "WHERE key = 'runs/2' AND version = 3", "WHERE key = 'runs/2' AND version = 4"
    psql.execute(f"CREATE TABLE parked AS SELECT * FROM change {here}".encode())
    psql.execute(f"DELETE FROM change {here}; UPDATE change SET gap = true {behind}".encode())
    real, taken = rule.pack, list[str]()

    def pack(unpacked: Any, parent_of: Any) -> Any:
        given = [*unpacked]
        if not taken and any(row.gap for row in given):
            taken.append("INSERT INTO change SELECT * FROM parked")
            psql.execute(f"{taken[0]}; UPDATE change SET gap = false {behind}".encode())
        return real(given, parent_of)

    monkeypatch.setattr(packing, "pack", pack)
    async with flushing(worker):
        await until_packed(psql)
    assert taken
    assert rows(psql, UNHASHED) == [(0,)]
    assert await read(cache, psql) == before
    assert (await verify(settings))[1] == []


async def test_an_earlier_release_that_takes_a_shard_over_again_leaves_more_to_pack(
    settings: Settings, cache: AsyncStateCache, agents: Agents, make_worker: MakeWorker, psql: Psql, small: None
) -> None:
    told_by(agents, rounds=3)
    await migrate(settings)
    worker = make_worker()
    await flush(worker)
    assert rows(psql, UNHASHED) == rows(psql, LEFT) == [(0,)]
    told_by(agents, rounds=3)
    psql.execute("UPDATE shard SET owner = NULL; DELETE FROM worker")
    flushed_by_an_earlier_release(agents, psql)
    assert rows(psql, LEFT) != [(0,)]
    told_by(agents, rounds=2)
    another = make_worker()
    async with flushing(another):
        await until_packed(psql)
    await flush(another)
    assert rows(psql, UNHASHED) == [(0,)]
    assert len(await read(cache, psql)) == rows(psql, "SELECT count(*) FROM change")[0][0]
    assert (await verify(settings))[1] == []


async def test_a_role_that_may_not_pack_goes_on_flushing(
    settings: Settings, agents: Agents, worker: Worker, psql: Psql, small: None, log: Log
) -> None:
    told_by(agents, rounds=3)
    flushed_by_an_earlier_release(agents, psql)
    before = values_of(psql)
    await migrate(settings)
    psql.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE insufficient_privilege; END $$"
    )
    psql.execute("CREATE TRIGGER no BEFORE UPDATE ON change EXECUTE FUNCTION no()")
    agents.commit(("runs/1", '"more"'))
    await turn_until(worker, log, "not_packed")
    await flush(worker)
    assert "42501" in log.of("not_packed")[0]["detail"]
    assert rows(psql, "SELECT count(*) FROM change") == [(len(before) + 1,)]
    psql.execute("DROP TRIGGER no ON change")
    async with flushing(worker):
        await until_packed(psql)
    assert (await verify(settings))[1] == []


async def test_a_branch_that_an_earlier_release_took_in_is_recorded_when_it_is_packed(
    settings: Settings, cache: AsyncStateCache, agents: Agents, worker: Worker, psql: Psql, small: None
) -> None:
    told_by(agents, rounds=3)
    agents.commit({"key": "runs/9", "value": f'"{text(4)}"'}, reason="branch of runs/0@2: a try")
    flushed_by_an_earlier_release(agents, psql)
    await migrate(settings)
    assert await cache.branches("runs/0") == []
    async with flushing(worker):
        await until_packed(psql)
    (branch,) = await cache.branches("runs/0")
    made = rows(psql, "SELECT change_id FROM change WHERE key = 'runs/0' AND version = 2")
    assert [(branch.origin_change_id,)] == made
    assert (branch.kind, branch.key, branch.version, branch.origin_version) == ("branch", "runs/9", 1, 2)
    assert await cache.ancestry("runs/9") == [branch]
    assert (await verify(settings))[1] == []
