"""A schema of which a restore brought a part only: the doctor names what it lacks."""

from __future__ import annotations

import psycopg
import pytest

from statecache.sql import statement
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
