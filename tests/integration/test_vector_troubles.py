"""Indexes of vectors of which something is gone, foreign or odd: no flush ends with them, and no search lies."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, LimitExceeded, Settings, UsageError
from statecache.core.postgres.vector_indexes import create, drop, indexes
from statecache.core.read import nearest as searching
from statecache_workers import vector_indexing
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Log, flush, flushing, rows, turn_until
from tests.support.polling import pause
from tests.support.vectors import (
    DIMS,
    QUERY,
    found,
    near,
    need_pgvector,
    packed,
    refuse,
    refuse_no_more,
    table,
    take_in,
)  # fmt: skip

Psql = psycopg.Connection[Any]
FAR = ["notes/b", "notes/a"]
TROUBLES = ["gone", "another", "no column", "foreign", "unwatched", "watched in part", "watched at times"]
_TRIGGERS = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'state'::regclass AND tgname LIKE 'vectors%' ORDER BY 1"


@pytest.fixture(autouse=True)
async def _indexed(settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    """Two notes, indexed."""
    need_pgvector(psql)
    await cache.set_many({"notes/a": {"vectors": near(0.1)}, "notes/b": {"vectors": near(0.2)}})
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    take_in(psql)


def _table(psql: Psql) -> str:
    ((name,),) = rows(psql, "SELECT relation FROM vector_index")
    return str(name)


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_table_that_is_not_as_it_was_made_hinders_no_flush_and_is_made_anew(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql, trouble: str
) -> None:
    name = _table(psql)
    if trouble in ("gone", "another"):
        psql.execute(f'DROP TABLE "{name}"'.encode())
    if trouble == "another":  # as after a restore without its rows
        psql.execute(f'CREATE TABLE "{name}" (key text, place integer, embedding public.vector({DIMS}))'.encode())
    if trouble == "no column":  # as after DROP EXTENSION … CASCADE
        psql.execute(f'ALTER TABLE "{name}" DROP COLUMN embedding'.encode())
    if trouble == "foreign":
        psql.execute(f'ALTER TABLE "{name}" RENAME TO another'.encode())
    if trouble == "unwatched":  # as after a restore of tables alone
        for (trigger,) in rows(psql, _TRIGGERS):
            psql.execute(f'DROP TRIGGER "{trigger}" ON state'.encode())
    if trouble == "watched at times":  # as by a release before, and after a restore that disabled triggers meanwhile
        psql.execute("ALTER TABLE state ENABLE TRIGGER USER")
    if trouble == "watched in part":
        psql.execute(f'ALTER TABLE state DISABLE TRIGGER "{rows(psql, _TRIGGERS)[0][0]}"'.encode())
    cache._runtime.nearest._known.clear()
    assert await found(cache) == FAR
    assert not (await indexes(settings))[0].ready
    await cache.set("notes/c", {"vectors": near(0.3)})
    await cache.delete("notes/a")
    await flush(worker)
    assert await found(cache) == ["notes/c", "notes/b"]
    take_in(psql)
    assert [key for key, _ in table(psql)] == ["notes/b", "notes/c"]
    assert (await indexes(settings))[0].ready
    cache._runtime.nearest._known.clear()
    assert await found(cache) == ["notes/c", "notes/b"]
    psql.execute(f'DROP TABLE "{name}"'.encode())
    assert await drop(settings, "notes")
    assert rows(psql, _TRIGGERS) == []


async def test_an_index_that_is_made_while_another_is_dropped_is_watched(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    """Who drops waits for the table of states; until he has it, somebody else makes an index of that name."""
    assert rows(psql, "SELECT drop_vector_index('notes')") == [(True,)]
    await create(settings, "notes", member="vectors", dims=DIMS)
    assert rows(psql, "SELECT watch_vectors('notes', false)") == [(True,)]
    assert len(rows(psql, _TRIGGERS)) == 2
    await cache.set("notes/c", {"vectors": near(0.3)})
    await flush(worker)
    take_in(psql)
    assert [key for key, _ in table(psql)] == ["notes/a", "notes/b", "notes/c"]


@pytest.mark.parametrize("by", ["a worker", "who repeats it"])
async def test_an_index_whose_making_was_cut_off_is_finished(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql, by: str
) -> None:
    await drop(settings, "notes")
    psql.execute("SELECT create_vector_index('notes', 'vectors', %s)", (DIMS,))
    assert not (await indexes(settings))[0].ready
    if by == "a worker":
        take_in(psql)
    else:
        with pytest.raises(UsageError, match="are indexed already"):
            await create(settings, "notes", member="vectors", dims=DIMS + 1)
        assert await create(settings, "notes", member="vectors", dims=DIMS) == 2
    await cache.set("notes/c", {"vectors": near(0.3)})
    await flush(worker)
    take_in(psql)
    assert [key for key, _ in table(psql)] == ["notes/a", "notes/b", "notes/c"]
    with pytest.raises(UsageError, match="are indexed already"):
        await create(settings, "notes", member="vectors", dims=DIMS)


async def test_what_an_index_cannot_take_holds_up_nothing_else(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    await create(settings, "large", member="vectors", dims=2500)
    rng = random.Random(1)
    wide = [rng.gauss(0, 1) for _ in range(2500)]
    await cache.set("notes/odd", {"vectors": {"x" * 6000: near(0.9), "y": near(0.8)}})
    await cache.set("notes/many", {"vectors": {str(at): near(0.7) for at in range(101)}})
    await cache.set("notes/nul", {"text": "a\0b", "vectors": near(0.6)})
    await cache.set("notes/tiny", {"vectors": [0.5, 1e-50, *[0.0] * (DIMS - 3), 0.8660254]})
    await cache.set("notes/huge", {"vectors": [1e38, 3e38, *[0.0] * (DIMS - 2)]})
    await cache.set("large/a", {"vectors": [one * 1e30 for one in wide]})
    await cache.set("notes/c", {"vectors": near(0.3)})
    told = ["notes/odd", "notes/tiny", "notes/huge", "notes/c", "notes/b", "notes/a"]
    for _ in range(3):
        assert await found(cache) == told
        ((state, score),) = await cache.nearest([one * 1e30 for one in wide], "large/")
        assert state.key == "large/a"
        assert score == pytest.approx(1, abs=1e-5)
        await flush(worker)
        take_in(psql)
    assert {one.refused for one in await indexes(settings)} == {0}
    apart = [1e30, 1e-30, *[0.0] * (DIMS - 2)]  # as a direction, the second is less than a 32-bit float can be
    assert (await found(cache, apart))[0] == "notes/odd"


async def test_a_state_that_is_refused_by_the_index_is_counted_and_left_out(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    psql.execute(f"""ALTER TABLE "{_table(psql)}" ADD CHECK (key <> 'notes/c')""".encode())
    await cache.set("notes/c", {"vectors": near(0.3)})
    await cache.set("notes/d", {"vectors": near(0.4)})
    await flush(worker)
    assert await found(cache) == ["notes/d", "notes/c", *FAR]
    take_in(psql)
    assert [one.refused for one in await indexes(settings)] == [1]
    assert await found(cache) == ["notes/d", *FAR]


@pytest.mark.parametrize("sqlstate", ["22003", "23514", "54000", "P0001"])
async def test_what_blames_the_data_refuses_a_state_and_nothing_else(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql, sqlstate: str
) -> None:
    refuse(psql, "notes", sqlstate, rows_of="notes/b")
    await cache.set_many({"notes/b": {"vectors": near(0.3)}, "notes/c": {"vectors": near(0.4)}})
    await flush(worker)
    take_in(psql)
    assert [(one.refused, one.trouble) for one in await indexes(settings)] == [(1, "")]
    assert await found(cache) == ["notes/c", "notes/a"]


@pytest.mark.parametrize("sqlstate", ["40001", "42501", "53100", "55P03", "58030", "XX000", "3F000"])
async def test_what_a_trouble_keeps_out_waits_is_found_and_is_taken_in_after_it(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql, sqlstate: str
) -> None:
    """It left the list of what waits for good, and the index as well."""
    await create(settings, "jobs", member="vectors", dims=DIMS)
    refuse(psql, "notes", sqlstate, rows_of="notes/b")
    keys = ["notes/c", "notes/b", "notes/d", "jobs/a"]
    await cache.set_many({key: {"vectors": near(0.3 + at / 10)} for at, key in enumerate(keys)})
    await flush(worker)
    for _ in range(2):
        while rows(psql, "SELECT index_vectors(1000)") != [(0,)]:
            pass
        jobs, notes = await indexes(settings)
        assert (jobs.waiting, jobs.refused, jobs.trouble) == (0, 0, "")
        assert (notes.ready, notes.refused, notes.trouble) == (True, 0, f"{sqlstate}: it has {sqlstate}")
        assert notes.waiting > 0
        assert await found(cache) == ["notes/d", "notes/b", "notes/c", "notes/a"]
        assert await found(cache, prefix="jobs/") == ["jobs/a"]
    refuse_no_more(psql)
    take_in(psql)
    assert [(one.refused, one.trouble) for one in await indexes(settings)] == [(0, "")] * 2
    assert await found(cache) == ["notes/d", "notes/b", "notes/c", "notes/a"]


async def test_an_index_that_cannot_be_made_anew_holds_up_no_other(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    name = _table(psql)
    await create(settings, "jobs", member="vectors", dims=DIMS)
    psql.execute(f'DROP TABLE "{name}"; CREATE VIEW "{name}" AS SELECT 1 AS one'.encode())
    await cache.set_many({"notes/c": {"vectors": near(0.3)}, "jobs/a": {"vectors": near(0.4)}})
    await flush(worker)
    assert rows(psql, "SELECT index_vectors(1000)") == [(1,)]
    jobs, notes = await indexes(settings)
    assert (jobs.waiting, jobs.trouble) == (0, "")
    assert (notes.ready, notes.trouble) == (False, f'42809: "{name}" is not a table')
    psql.execute(f'DROP VIEW "{name}"'.encode())
    take_in(psql)
    assert [(one.ready, one.trouble) for one in await indexes(settings)] == [(True, "")] * 2
    assert await found(cache) == ["notes/c", *FAR]


@pytest.mark.parametrize("waits", [True, False])
async def test_an_index_is_in_no_trouble_once_pgvector_is_gone(
    cache: AsyncStateCache, worker: Worker, psql: Psql, waits: bool
) -> None:
    """Nothing is tried any more, and all is compared."""
    if waits:
        refuse(psql, "notes", "42501")
        await cache.set("notes/c", {"vectors": near(0.3)})
        await flush(worker)
    else:
        name = _table(psql)
        psql.execute(f'DROP TABLE "{name}"; CREATE VIEW "{name}" AS SELECT 1 AS one'.encode())
    assert rows(psql, "SELECT index_vectors(1000)") == [(0,)]
    assert rows(psql, "SELECT trouble IS NOT NULL FROM vector_index") == [(True,)]
    with psql.transaction(force_rollback=True):  # others use it too
        psql.execute("DROP EXTENSION vector CASCADE")
        take_in(psql)
        assert rows(psql, "SELECT trouble FROM vector_index") == [(None,)]


async def test_an_index_is_in_no_trouble_once_what_waited_is_no_state_any_more(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    refuse(psql, "notes", "53100")
    await cache.set("notes/c", {"vectors": near(0.3)})
    await flush(worker)
    assert rows(psql, "SELECT index_vectors(1000)") == [(0,)]
    assert (await indexes(settings))[0].trouble != ""
    psql.execute("UPDATE state SET op = 'quarantined' WHERE key = 'notes/c'")
    take_in(psql)
    assert (await indexes(settings))[0].trouble == ""


async def test_a_worker_says_what_is_in_the_way_and_tries_again(
    cache: AsyncStateCache, worker: Worker, psql: Psql, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_indexing, "LOOK_S", 0.1)
    worker.janitor.vectors._next_look = 0.0
    refuse(psql, "notes", "53100")
    await cache.set("notes/c", {"vectors": near(0.3)})
    await turn_until(worker, log, "vectors_wait")
    assert log.of("vectors_wait")[0] == {"detail": "notes: 53100: it has 53100"}
    refuse_no_more(psql)
    async with flushing(worker), asyncio.timeout(20):
        while rows(psql, "SELECT FROM vector_pending"):
            await pause()
    assert [key for key, _ in table(psql)] == ["notes/a", "notes/b", "notes/c"]


async def test_more_that_waits_than_can_be_compared_is_told_whatever_is_asked_for(
    cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "COMPARED_MAX", 5)
    values = {f"notes/{at}": {"vectors": near(at / 10), "kind": "rare" if at == 8 else "often"} for at in range(9)}
    await cache.set_many(values)
    await flush(worker)
    for where in (None, {"kind": "rare"}, {"kind": "none"}):
        with pytest.raises(LimitExceeded, match="states to be compared is 6"):
            await cache.nearest(QUERY, "notes/", where=where)
    take_in(psql)
    assert await found(cache, where={"kind": "rare"}) == ["notes/8"]


async def test_an_index_that_is_another_one_by_now_is_noticed(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    assert await found(cache) == FAR
    await drop(settings, "notes")
    await create(settings, "notes", member="spare", dims=DIMS)
    assert await found(cache) == FAR
    cache._runtime.nearest._known.clear()
    await drop(settings, "notes")
    await create(settings, "notes", member="vectors", dims=DIMS)
    assert await found(cache) == FAR
    await drop(settings, "notes")
    await create(settings, "notes", member="vectors", dims=3)
    take_in(psql)
    with pytest.raises(Exception, match="have 3 dimensions, and this one has 8"):
        await found(cache)


async def test_a_long_reader_lets_an_index_go_and_holds_up_no_flush(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    with psycopg.connect(settings.postgres_url, options=f"-c search_path={settings.postgres_schema}") as reader:
        reader.execute("SELECT count(*) FROM state")  # as pg_dump, for as long as it takes
        dropping = asyncio.create_task(drop(settings, "notes"))
        for at in range(5):
            await cache.set(f"notes/{at}", {"vectors": packed(near(0.5))})
            async with asyncio.timeout(3):
                await flush(worker)
        assert await dropping
        reader.rollback()
    take_in(psql)
    assert await create(settings, "notes", member="vectors", dims=DIMS) == 7


async def test_a_schema_of_an_earlier_release_is_searched_by_comparing_all(
    cache: AsyncStateCache, settings: Settings, psql: Psql
) -> None:
    await drop(settings, "notes")
    psql.execute("DROP FUNCTION vector_tables; DROP TABLE vector_index, vector_pending")
    cache._runtime.nearest._known.clear()
    assert await found(cache) == FAR
