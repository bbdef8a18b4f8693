"""A schema of which a restore brought a part only: the doctor names what it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from statecache import ConfigurationError, Settings, StateCache
from statecache.sql import migrations, statement
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeSettings
from tests.support.command_line import CommandLine


def test_what_a_restore_that_was_cut_off_left_out_is_named(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables come first, then rows, by the tables' names, then keys and indexes; a constraint may fail by itself."""
    settings = make_settings()
    cli, schema = CommandLine(settings, monkeypatch, capsys), settings.postgres_schema
    steps = {
        "DROP INDEX change_position": "index change_position",
        "ALTER TABLE epoch DROP CONSTRAINT epoch_pkey": "primary key epoch_pkey",
        "DROP FUNCTION set_locking": "function set_locking",
        "DELETE FROM shard": f"the rows of {settings.shards} shards",
        "DELETE FROM cluster": "the row of cluster",
        "DELETE FROM migration": "the row of cluster",
        "DROP TABLE worker": "table worker",
    }
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        for step, name in steps.items():
            assert name not in cli("doctor").out or step == "DELETE FROM migration"
            connection.execute(step.encode())
            facts = cli("doctor", "--json")
            (one,) = [one for one in facts.json["findings"] if " in part" in one["what"]]
            assert facts.status == 1
            assert name in one["what"]
            assert one["remedy"].startswith("restore the backup again")
            assert [one["given"] for one in facts.json["levels"] if one["level"] == "postgres"] == [False]


async def _flush(settings: Settings) -> None:
    worker = Worker(settings)
    try:
        await flush(worker)
    finally:
        await worker.close()


@pytest.mark.parametrize("table", ["state", "change", "epoch", "migration"])
def test_a_table_whose_rows_a_restore_left_out_is_named(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    """Its COPY failed, and pg_restore went on: all else is there, and a state that exists would be created again."""
    settings = make_settings()
    cli = CommandLine(settings, monkeypatch, capsys)
    with StateCache(settings=settings) as cache:
        cache.set("runs/1", 1)
    asyncio.run(_flush(settings))
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {settings.postgres_schema}".encode())
        assert "rows of" not in cli("doctor").out
        connection.execute(f"DELETE FROM {table}".encode())
    told = cli("doctor")
    assert told.status == 1
    assert f"the rows of {table}" in told.out
    if table != "migration":  # only who migrates reads these
        assert f"the rows of {table}" in cli("status").out


def test_the_schema_of_an_earlier_release_is_to_be_migrated(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings()
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {settings.postgres_schema}".encode())
        connection.execute("ALTER TABLE worker DROP COLUMN avoids, DROP COLUMN trouble")
        connection.execute("DELETE FROM migration WHERE number >= 5")
    told = CommandLine(settings, monkeypatch, capsys)("doctor")
    assert told.status == 1
    left = ", ".join(str(step.number) for step in migrations(settings.postgres_schema) if step.number >= 5)
    assert f"migrations {left} are not applied" in " ".join(told.out.split())
    assert "statecache migrate" in told.out


def test_all_that_the_migrations_make_is_looked_for(make_settings: MakeSettings) -> None:
    settings = make_settings()
    asked = {"schema": settings.postgres_schema}
    made = (
        "SELECT relname FROM pg_class WHERE relnamespace = %(schema)s::regnamespace "
        "UNION SELECT proname FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace"
    )
    with psycopg.connect(settings.postgres_url) as connection:
        there = {name for (name,) in connection.execute(made, asked)}
        text = statement("schema_missing", settings.postgres_schema).encode()
        assert connection.execute(text, asked).fetchall() == []
        lacking = connection.execute(text, {"schema": "elsewhere"}).fetchall()
    assert {name.rpartition(" ")[2] for (name,) in lacking} == there


@pytest.mark.parametrize("what", ["history", "undo", "diff", "get_group_at"])
def test_a_history_whose_shard_has_no_row_is_told_as_that(make_settings: MakeSettings, what: str) -> None:
    """It was a RuntimeError: coroutine raised StopIteration."""
    settings = make_settings()
    with StateCache(settings=settings) as cache:
        position = cache.set("runs/1", 1).position
        asyncio.run(_flush(settings))
        with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
            connection.execute(f"DELETE FROM {settings.postgres_schema}.shard".encode())
        calls: dict[str, Callable[[], object]] = {
            "history": lambda: list(cache.history("runs/1")),
            "undo": lambda: cache.undo("runs/1"),
            "diff": lambda: cache.diff("runs/1", 1, 1),
            "get_group_at": lambda: cache.get_group_at("runs/1", position=position),
        }
        with pytest.raises(ConfigurationError, match=r"has no row for shard \d\. Run `statecache migrate`"):
            calls[what]()
