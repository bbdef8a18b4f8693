"""Indexes of vectors in an operator's hands: made, listed, dropped; and what is told where one cannot be made."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.cli.vector_troubles import vector_troubles
from statecache.core.postgres.vector_indexes import create
from statecache.sql import statement
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.support.command_line import CommandLine
from tests.support.vectors import DIMS, near, need_pgvector, refuse, refuse_no_more, take_in

_LOOKS = (("status", "--json"), ("doctor", "--json"))


async def test_an_index_is_made_listed_and_dropped(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    need_pgvector(psql)
    none = "no vectors are indexed; `statecache vectors create NAMESPACE --dims …` begins that\n"
    assert await cli.beside("vectors", "list") == (0, none, "")
    assert (await cli.beside("vectors", "list", "--json")).json == {"indexes": []}
    await cache.set("notes/a", {"embedding": [1.0, 0.0]})
    await flush(worker)
    made = await cli.beside("vectors", "create", "notes", "--dims", "2", "--member", "embedding")
    assert made == (0, "the vectors of 'notes' are indexed from now on; workers take in 1 state\n", "")
    ((table,),) = rows(psql, "SELECT relation FROM vector_index")
    fact = {"namespace": "notes", "member": "embedding", "dims": 2, "ready": True, "table": table}
    fact |= {"waiting": 1, "refused": 0, "trouble": ""}
    assert (await cli.beside("vectors", "list", "--json")).json == {"indexes": [fact]}
    take_in(psql)
    told = await cli.beside("vectors", "list")
    assert told.out.splitlines()[1].split() == ["notes", "embedding", "2", "0", "0", table]
    again = await cli.beside("vectors", "create", "notes", "--dims", "3")
    assert again.status == 2
    assert "are indexed already" in again.err
    assert (await cli.beside("vectors", "drop", "notes")).status == 2
    gone = await cli.beside("vectors", "drop", "notes", "--yes", "--json")
    assert (gone.status, gone.json) == (0, {"namespace": "notes", "dropped": True})
    assert await cli.beside("vectors", "drop", "notes", "--yes") == (1, "no vectors of 'notes' were indexed\n", "")


@pytest.mark.parametrize("other", [{"prefix": "other"}, {"shards": 7}], ids=str)
@pytest.mark.parametrize("words", ["list", "create notes --dims 2", "drop notes --yes"])
def test_settings_that_the_schema_is_not_of_are_refused(
    settings: Settings, psql: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], words: str, other: dict[str, Any],
) -> None:  # fmt: skip
    ended = CommandLine(settings.model_copy(update=other), monkeypatch, capsys)("vectors", *words.split())
    assert ended.status == 3
    assert "this schema is pinned to" in ended.err
    assert rows(psql, "SELECT count(*) FROM vector_index") == [(0,)]


async def test_what_keeps_states_out_of_an_index_is_told_with_what_to_do(
    cli: CommandLine, settings: Settings, cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    """It was all called healthy: nothing needed a person."""
    need_pgvector(psql)

    async def told() -> list[str]:
        listed, status, doctor = [await cli.beside(*one) for one in (("vectors", "list"), *_LOOKS)]
        lines = [one for one in status.json["attention"] if "vectors" in one]
        assert [line.removeprefix("statecache: ") for line in listed.err.splitlines()] == lines
        found = [one for one in doctor.json["findings"] if "vectors" in one["what"]]
        assert [f"{one['what']}; {one['costs']}: {one['remedy']}" for one in found] == lines
        assert {one["severity"] for one in found} <= {"warning"}
        assert (listed.status, status.status) == ((1, 1) if lines else (0, 0))
        return lines

    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    assert await told() == []
    refuse(psql, "notes", "53100")
    await cache.set("notes/a", {"vectors": near(0.1)})
    await flush(worker)
    assert rows(psql, "SELECT index_vectors(1000)") == [(0,)]
    (line,) = await told()
    assert line.startswith("the index of the vectors of 'notes' takes nothing in: 53100: it has 53100; searches")
    refuse_no_more(psql)
    refuse(psql, "notes", "22003")
    take_in(psql)
    (line,) = await told()
    assert line.startswith("the index of the vectors of 'notes' has refused 1 state for the data; searches do not find")
    assert "`statecache vectors drop notes` and `create` it again" in line
    refuse_no_more(psql)
    assert (await cli.beside("vectors", "drop", "notes", "--yes")).status == 0
    await create(settings, "notes", member="vectors", dims=DIMS)
    take_in(psql)
    assert await told() == []


@pytest.mark.parametrize(
    ("sqlstate", "costs"),
    [("53100", "searches compare what waits"), ("42501", "searches are refused where they need that right too; else")],
)
def test_what_a_trouble_costs_is_told(sqlstate: str, costs: str) -> None:
    """What indexes vectors, and what searches the index, are functions that run as the schema's owner."""
    (told,) = vector_troubles([("notes", 0, f"{sqlstate}: it is in the way")])
    assert told.costs.startswith(costs)


async def test_a_server_without_pgvector_is_told_so(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str, schema: str) -> str:
        return statement(name, schema).replace("EXISTS vector", "EXISTS no_such_extension")

    monkeypatch.setattr("statecache.core.postgres.transactions.statement", lacking)
    told = await cli.beside("vectors", "create", "notes", "--dims", "3")
    assert told.status == 3
    assert "no_such_extension" in told.err
    assert "This server has no pgvector: install it there" in told.err


@pytest.mark.parametrize("dims", ["0", "4001", "x"])
async def test_dimensions_that_are_none_are_refused(cli: CommandLine, dims: str) -> None:
    assert (await cli.beside("vectors", "create", "notes", "--dims", dims)).status == 2


async def test_a_database_that_was_never_migrated_is_told_so(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_POSTGRES_SCHEMA", "never_made")
    ended = await cli.beside("vectors", "list")
    assert (ended.status, "Run `statecache migrate`: the schema is not there, or of" in ended.err) == (3, True)
