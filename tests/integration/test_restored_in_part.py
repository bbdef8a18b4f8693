"""A schema of which a restore brought a part only, or that was renamed: the doctor names what it lacks, or was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from statecache import ConfigurationError, Settings, StateCache
from statecache.concurrency import THREADS, run
from statecache.core.postgres.migrate import migrate
from statecache.sql import migrations, statement
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeSettings, on_database
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
            indexed = step.startswith(("DROP INDEX", "ALTER TABLE epoch"))
            assert one["remedy"].startswith("make it again: CREATE INDEX" if indexed else "restore the backup again")
            given = [one["given"] for one in facts.json["levels"] if one["level"] == "postgres"]
            assert given == [step.startswith("DROP INDEX")], "who writes needs keys and tables, and no index"


async def _flush(settings: Settings) -> None:
    worker = Worker(settings)
    try:
        await flush(worker)
    finally:
        await worker.close()


@pytest.mark.parametrize("table", ["state", "change", "epoch", "migration", "change and of state"])
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
        assert cli("verify").status == 0
        for one in table.split(" and of "):
            connection.execute(f"DELETE FROM {one}".encode())
    told = cli("doctor")
    assert told.status == 1
    assert f"the rows of {table}" in told.out
    assert f"the rows of {table}" in cli("status").out
    told = cli("verify")
    assert told.status == (0 if table in ("epoch", "migration") else 1)
    assert table != "change and of state" or f"the rows of {table} are not there" in told.out


@pytest.mark.parametrize("opened", [False, True], ids=["before its gates were opened", "after"])
def test_a_shard_whose_row_a_restore_of_data_alone_left_out_is_named(
    make_settings: MakeSettings, redis_raw: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    opened: bool,
) -> None:  # fmt: skip
    """Its COPY failed at the rows that `migrate` had made: positions would begin at 1 again."""
    settings = make_settings(shards=1)
    cli = CommandLine(settings, monkeypatch, capsys)
    with StateCache(settings=settings) as cache:
        first = cache.set("runs/1", 1)
        cache.set("runs/1", 2)
    asyncio.run(_flush(settings))
    told = "the rows of shard that belong to those of change and epoch"
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {settings.postgres_schema}".encode())
        for command in ("doctor", "status", "verify", "migrate"):
            assert told not in cli(command).out
        connection.execute("CREATE TABLE away AS SELECT * FROM change; DELETE FROM change")
        redis_raw.unlink(*redis_raw.scan_iter(f"{settings.prefix}:*"))
        connection.execute("UPDATE shard SET epoch = 0, replid = '', flushed = 0, entries = 0, bytes = 0, owner = NULL")
        if opened:
            connection.execute("DELETE FROM epoch")
            assert cli("migrate").status == 0
        connection.execute("INSERT INTO change SELECT * FROM away; DROP TABLE away")
        for command in ("doctor", "status", "verify"):
            ended = cli(command)
            assert told in " ".join(ended.out.split()), command
            assert ended.status == 1
        if opened:
            with StateCache(settings=settings) as cache:
                assert cache.set("runs/1", 3).position == first.position
                assert "nothing is left" not in str(cache.close(drain=0.5))


def test_a_shard_whose_row_a_restore_left_out_is_still_named_once_workers_have_flushed_past_what_came_back(
    make_settings: MakeSettings, redis_raw: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No change is above the watermark any more, but two commits are at one position."""
    settings = make_settings(shards=1)
    cli = CommandLine(settings, monkeypatch, capsys)
    with StateCache(settings=settings) as cache:
        cache.set("runs/1", 1)
    asyncio.run(_flush(settings))
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {settings.postgres_schema}".encode())
        connection.execute("CREATE TABLE away AS SELECT * FROM change; DELETE FROM change; DELETE FROM state")
        connection.execute("DELETE FROM epoch; UPDATE shard SET epoch = 0, replid = '', flushed = 0, owner = NULL")
        redis_raw.unlink(*redis_raw.scan_iter(f"{settings.prefix}:*"))
        assert cli("migrate").status == 0
        with StateCache(settings=settings) as cache:
            cache.set("runs/2", 1)
            cache.set("runs/2", 2)
        asyncio.run(_flush(settings))
        for command in ("doctor", "status", "verify"):
            assert "rows of shard" not in cli(command).out
        connection.execute("INSERT INTO change SELECT * FROM away; DROP TABLE away")
        above = "SELECT FROM change JOIN shard USING (shard) WHERE n > flushed"
        assert connection.execute(above.encode()).fetchone() is None
    for command in ("doctor", "status", "verify"):
        ended = cli(command)
        assert "the rows of shard that belong to those of change and epoch" in " ".join(ended.out.split()), command
        assert ended.status == 1


def test_a_table_that_is_not_logged_is_named_with_what_makes_it_so(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash of Postgres would empty it."""
    settings = make_settings()
    cli = CommandLine(settings, monkeypatch, capsys)
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {settings.postgres_schema}.change SET UNLOGGED".encode())
        told = cli("doctor", "--json")
        (one,) = [one for one in told.json["findings"] if "the log of table change" in one["what"]]
        assert told.status == 1
        assert "the log of table change" in cli("status").out
        connection.execute(one["remedy"].removeprefix("make it again: ").encode())
    assert "the log of" not in cli("doctor").out


def test_the_schema_of_an_earlier_release_is_to_be_migrated(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings()
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {settings.postgres_schema}".encode())
        connection.execute("ALTER TABLE worker DROP COLUMN avoids, DROP COLUMN trouble")
        connection.execute("DELETE FROM migration WHERE number >= 5")
    cli = CommandLine(settings, monkeypatch, capsys)
    told = cli("doctor")
    assert told.status == 1
    left = ", ".join(str(step.number) for step in migrations(settings.postgres_schema) if step.number >= 5)
    assert f"migrations {left} are not applied" in " ".join(told.out.split())
    assert "statecache migrate" in told.out


def test_a_schema_that_was_only_not_migrated_yet_is_to_be_migrated_and_not_restored(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was told to restore a backup; and that `postgres` is not given, while such commits succeeded."""
    settings = make_settings()
    cli = CommandLine(settings, monkeypatch, capsys)
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {settings.postgres_schema}".encode())
        connection.execute("DELETE FROM migration WHERE number >= 13")
        connection.execute("DROP TABLE vector_pending; DROP FUNCTION floats_of")
    left = ", ".join(str(step.number) for step in migrations(settings.postgres_schema) if step.number >= 13)
    told = cli("status", "--json").json["attention"]
    assert f"migrations {left} are not applied: run `statecache migrate`" in told
    assert "restore" not in " ".join(told)
    (level,) = [one for one in cli("doctor", "--json").json["levels"] if one["level"] == "postgres"]
    assert level["given"]
    assert level["why"].endswith(f"migrations {left} are not applied")


def test_a_migration_that_makes_nothing_new_is_missed_too(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings()
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"DELETE FROM {settings.postgres_schema}.migration WHERE number = 17".encode())
    told = CommandLine(settings, monkeypatch, capsys)("status", "--json").json["attention"]
    assert "migrations 17 are not applied: run `statecache migrate`" in told


@pytest.mark.parametrize(
    "changed",
    [
        "ALTER INDEX state_pkey RENAME TO bobs_key",
        "CREATE INDEX anew ON change (shard, n); DROP INDEX change_position",
        "CREATE UNIQUE INDEX anew ON lost (shard, epoch, first_n, cause); ALTER TABLE lost DROP CONSTRAINT lost_pkey",
    ],
)
def test_a_key_or_an_index_that_somebody_renamed_or_replaced_is_there(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changed: str
) -> None:
    """It was told to restore a backup."""
    settings = make_settings()
    cli = CommandLine(settings, monkeypatch, capsys)
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {settings.postgres_schema}".encode())
        connection.execute(changed.encode())
    for command in ("doctor", "status"):
        assert "there in part" not in " ".join(cli(command).out.split())


def test_what_makes_a_key_or_an_index_again_makes_the_one_that_was_there(make_settings: MakeSettings) -> None:
    settings = make_settings()
    schema, asked = settings.postgres_schema, {"schema": settings.postgres_schema}
    text, made = (
        statement("schema_missing", schema).encode(),
        "SELECT indexdef FROM pg_indexes WHERE schemaname = %(schema)s",
    )
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        before = sorted(connection.execute(made, asked))
        assert len(before) > 30
        connection.execute(f"SET search_path = {schema}".encode())
        for name, constraint in connection.execute(
            "SELECT c.relname, k.conrelid::regclass FROM pg_index i JOIN pg_class c ON c.oid = indexrelid "
            "LEFT JOIN pg_constraint k ON conindid = c.oid WHERE relnamespace = %(schema)s::regnamespace",
            asked,
        ).fetchall():
            drops = f"ALTER TABLE {constraint} DROP CONSTRAINT {name}" if constraint else f"DROP INDEX {name}"
            connection.execute(drops.encode())
        for _, command in connection.execute(text, asked).fetchall():
            connection.execute(command.encode())
        assert sorted(connection.execute(made, asked)) == before


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
    assert {name.rpartition(" ")[2] for name, _ in lacking} == there


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


@pytest.mark.parametrize("copied", [True, False], ids=["beside the live one", "alone"])
@pytest.mark.parametrize("renamed", ["{}_aside", "aside_{}"])
def test_a_schema_that_was_renamed_is_refused_by_all_before_its_functions_write_to_the_live_one(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    renamed: str, copied: bool,
) -> None:  # fmt: skip
    """An operator kept a copy aside: its functions name the schema that they were made in."""
    live = make_settings()
    aside = live.model_copy(
        update={
            "postgres_schema": renamed.format(live.postgres_schema),
            "redis_url": on_database(live.redis_url, 9),
        }
    )
    commands = (
        "migrate", "migrate --no-redis", "epoch adopt all", "epoch adopt all --from none", "status", "verify", "lost",
        "get runs/1", "vectors list", "vectors create notes --dims 2", "vectors drop notes --yes",
    )  # fmt: skip
    shards, told = f"SELECT * FROM {live.postgres_schema}.shard ORDER BY 1".encode(), "were made in schema "
    with psycopg.connect(live.postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER SCHEMA {live.postgres_schema} RENAME TO {aside.postgres_schema}".encode())
        if copied:
            run(migrate(live, redis=False, io=THREADS))
            before = connection.execute(shards).fetchall()
        cli = CommandLine(aside, monkeypatch, capsys)
        for command in commands:
            ended = cli(*command.split())
            assert f"{told}{live.postgres_schema}," in " ".join((ended.out + ended.err).split()), command
            assert ended.status in (1, 3), command
        found = cli("doctor", "--json")
        (one,) = [one for one in found.json["findings"] if told in one["what"]]
        assert f'ALTER SCHEMA "{aside.postgres_schema}" RENAME TO "{live.postgres_schema}"' in one["remedy"]
        assert [level["given"] for level in found.json["levels"] if level["level"] == "postgres"] == [False]
        with pytest.raises(ConfigurationError, match=told):
            asyncio.run(_flush(aside))
        if copied:
            assert connection.execute(shards).fetchall() == before
            return
        connection.execute(one["remedy"].partition(":")[2].partition(";")[0].strip().encode())
    assert told not in CommandLine(live, monkeypatch, capsys)("doctor").out


@pytest.mark.parametrize("name", ["user", "_", "{}_{}"])
def test_a_schema_of_any_valid_name_is_the_one_that_its_functions_name(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    settings = make_settings(postgres_schema=name.format("a" * 30, "9" * 32))
    cli = CommandLine(settings, monkeypatch, capsys)
    assert cli("migrate").status == 0
    assert "were made in" not in cli("doctor").out
