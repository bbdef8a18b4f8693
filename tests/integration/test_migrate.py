"""Migrations: once, twice, two at once, halfway, behind a pooler, and wherever things do not belong together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from statecache import ConfigurationError, PostgresUnavailable, RedisUnavailable, Settings
from statecache.cli.main import run
from statecache.concurrency.tasks import Tasks
from statecache.core.postgres import migrate as module
from statecache.core.postgres import vector_indexes
from statecache.core.postgres.migrate import MigrationReport, migrate
from statecache.keys import KeySpace
from statecache.sql import CODE, Migration, migrations, statement
from tests.fixtures.faults import through
from tests.fixtures.servers import SHARDS, MakeSettings, plain_client
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

NOBODY = "redis://127.0.0.1:1/0"
STEPS = tuple(f"{step.number:04d}_{step.name}" for step in migrations("any"))
NUMBERS = [(step.number,) for step in migrations("any")]


@pytest.fixture
def fresh(make_settings: MakeSettings) -> Settings:
    """Settings of a deployment that does not exist yet."""
    return make_settings(migrated=False)


def rows(settings: Settings, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        cursor = connection.execute(text.replace("{schema}", f'"{settings.postgres_schema}"').encode())
        return cursor.fetchall() if cursor.description else []


def with_other(settings: Settings, **other: Any) -> Settings:
    return Settings(**{**settings.model_dump(), **other})


def url_of(settings: Settings, **other: str) -> str:
    facts: dict[str, Any] = {**psycopg.conninfo.conninfo_to_dict(settings.postgres_url), **other}
    return psycopg.conninfo.make_conninfo(**facts)


def plan(monkeypatch: pytest.MonkeyPatch, *more: tuple[int, str, str]) -> None:
    """Let the code know more steps than there are files."""

    def known(schema: str) -> list[Migration]:
        later = [Migration(number, name, text.replace("{schema}", f'"{schema}"')) for number, name, text in more]
        return [*migrations(schema), *later]

    monkeypatch.setattr(module, "migrations", known)


async def test_a_fresh_deployment_gets_everything_and_a_second_run_has_nothing_to_do(fresh: Settings) -> None:
    first = await migrate(fresh)
    assert first == MigrationReport(applied=STEPS, pinned=True, shards_added=SHARDS, shards_opened=SHARDS)
    assert first.did_something
    second = await migrate(fresh)
    assert second == MigrationReport()
    assert not second.did_something
    noted = rows(fresh, "SELECT number, name FROM {schema}.migration ORDER BY number")
    assert [f"{number:04d}_{name}" for number, name in noted] == [*STEPS]
    assert rows(fresh, "SELECT shards, hash, group_rule, prefix, min_code FROM {schema}.cluster") == [
        (SHARDS, "crc32", "first-two-segments", fresh.prefix, CODE)
    ]
    assert rows(fresh, "SELECT shard, epoch FROM {schema}.shard ORDER BY shard") == [(n, 1) for n in range(SHARDS)]


async def test_several_at_once_do_each_thing_once(fresh: Settings) -> None:
    reports = await asyncio.gather(*(migrate(fresh) for _ in range(4)))
    assert sorted(step for report in reports for step in report.applied) == [*STEPS]
    assert sum(report.pinned for report in reports) == 1
    assert sum(report.shards_added for report in reports) == SHARDS
    assert sum(report.shards_opened for report in reports) == SHARDS
    assert rows(fresh, "SELECT max(epoch) FROM {schema}.shard") == [(1,)]


@pytest.mark.parametrize("isolation", ["repeatable\\ read", "serializable"])
async def test_who_has_waited_for_another_looks_at_what_that_one_did(fresh: Settings, isolation: str) -> None:
    given = with_other(fresh, postgres_url=url_of(fresh, options=f"-c default_transaction_isolation={isolation}"))
    waiting = (
        "SELECT count(*) FROM pg_locks l JOIN pg_locks h USING (locktype, classid, objid, objsubid)"
        " WHERE locktype = 'advisory' AND NOT l.granted AND h.granted AND h.pid = "
    )
    with psycopg.connect(fresh.postgres_url) as holder:
        holder.execute(statement("migrate_lock", fresh.postgres_schema).encode())
        several = [asyncio.create_task(migrate(given)) for _ in range(3)]
        async with asyncio.timeout(20):
            while rows(fresh, f"{waiting}{holder.info.backend_pid}") < [(3,)]:
                await pause()
    reports = await asyncio.gather(*several)
    assert sorted(step for report in reports for step in report.applied) == [*STEPS]


OWNERS: dict[str, Callable[[Settings], Awaitable[object]]] = {
    "migrate": migrate,
    "vectors list": vector_indexes.indexes,
    "vectors create": lambda settings: vector_indexes.create(settings, "docs", member="vector", dims=3),
    "vectors drop": lambda settings: vector_indexes.drop(settings, "docs"),
}
"""What the schema's owner does, and Postgres takes as long over as it takes."""


@pytest.mark.parametrize("what", OWNERS)
async def test_who_is_let_in_and_never_answered_is_told_so(
    settings: Settings, postgres_proxy: FaultProxy, what: str
) -> None:
    """As a pooler that is paused does it."""
    fault = postgres_proxy.arm("silence", at=b"lock_timeout")
    with pytest.raises(PostgresUnavailable, match=r"timeout.*no answer within 0\.5 s") as caught:
        await OWNERS[what](through(settings, postgres=postgres_proxy).model_copy(update={"timeout_s": 0.5}))
    assert fault.struck
    assert caught.value.reason == "timeout"


async def test_a_step_that_fails_leaves_nothing_of_itself_and_all_before_it(
    fresh: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, (99, "broken", "CREATE TABLE {schema}.half (a integer); SELECT 1/0;"))
    with pytest.raises(ConfigurationError, match="refuses migration 99: division by zero"):
        await migrate(fresh)
    assert rows(fresh, "SELECT number FROM {schema}.migration ORDER BY number") == NUMBERS
    assert rows(fresh, "SELECT to_regclass('{schema}.half')") == [(None,)]
    plan(monkeypatch, (99, "mended", "CREATE TABLE {schema}.whole (a integer); SELECT 1;"))
    assert (await migrate(fresh)).applied == ("0099_mended",)


async def test_a_migration_that_dies_before_the_shards_have_rows_is_completed_by_the_next(fresh: Settings) -> None:
    await migrate(fresh, redis=False)
    rows(fresh, "DELETE FROM {schema}.shard WHERE shard > 0")
    assert await migrate(fresh, redis=False) == MigrationReport(shards_added=SHARDS - 1)


@pytest.mark.parametrize("other", [{"shards": SHARDS * 2}, {"prefix": "elsewhere"}])
async def test_another_pin_is_refused_and_both_are_named(
    fresh: Settings, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    await migrate(fresh)
    plan(monkeypatch, (99, "more", "CREATE TABLE {schema}.more (a integer)"))
    with pytest.raises(ConfigurationError) as caught:
        await migrate(with_other(fresh, **other))
    pinned = {"shards": SHARDS, "prefix": fresh.prefix}
    assert all(
        str(pinned[name]) in str(caught.value) and str(value) in str(caught.value) for name, value in other.items()
    )
    assert rows(fresh, "SELECT number FROM {schema}.migration ORDER BY number") == NUMBERS
    assert rows(fresh, "SELECT count(*) FROM {schema}.shard") == [(SHARDS,)]


async def test_a_schema_that_is_too_new_is_refused_before_anything_is_changed(
    fresh: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(fresh)
    rows(fresh, f"UPDATE {{schema}}.cluster SET min_code = {CODE + 1}")
    plan(monkeypatch, (99, "more", "CREATE TABLE {schema}.more (a integer)"))
    with pytest.raises(ConfigurationError, match=f"code level {CODE + 1}.*Upgrade"):
        await migrate(fresh)
    assert rows(fresh, "SELECT number FROM {schema}.migration ORDER BY number") == NUMBERS


async def test_newer_steps_that_still_let_this_code_in_are_left_alone(fresh: Settings) -> None:
    await migrate(fresh)
    later = len(NUMBERS) + 1
    rows(fresh, f"INSERT INTO {{schema}}.migration (number, name) VALUES ({later}, 'later')")
    assert await migrate(fresh) == MigrationReport(newer=(later,))


async def test_two_tenants_on_one_pair_of_servers_never_meet(make_settings: MakeSettings) -> None:
    one, two = make_settings(), make_settings()
    assert rows(one, "SELECT id FROM {schema}.cluster") != rows(two, "SELECT id FROM {schema}.cluster")
    crossed = with_other(one, postgres_schema=two.postgres_schema)
    with pytest.raises(ConfigurationError, match=f"{two.prefix}.*{one.prefix}"):
        await migrate(crossed)


async def test_a_redis_that_belongs_to_another_cluster_is_refused(fresh: Settings) -> None:
    await migrate(fresh)
    old = rows(fresh, "SELECT id::text FROM {schema}.cluster")[0][0]
    rows(fresh, "DROP SCHEMA {schema} CASCADE")
    with pytest.raises(ConfigurationError, match=f"cluster {old}"):
        await migrate(fresh)


async def test_without_redis_it_is_left_alone_until_asked_for(fresh: Settings) -> None:
    report = await migrate(with_other(fresh, redis_url=NOBODY), redis=False)
    assert (report.applied, report.shards_opened) == (STEPS, 0)
    with plain_client(fresh.redis_url) as client:
        assert not client.exists(KeySpace(fresh.prefix, SHARDS).meta(0))
    assert await migrate(fresh) == MigrationReport(shards_opened=SHARDS)


async def test_redis_away_is_unavailable_and_the_schema_is_done(fresh: Settings) -> None:
    with pytest.raises(RedisUnavailable):
        await migrate(with_other(fresh, redis_url=NOBODY))
    assert rows(fresh, "SELECT number FROM {schema}.migration ORDER BY number") == NUMBERS
    assert await migrate(fresh) == MigrationReport(shards_opened=SHARDS)


@pytest.mark.own_servers("they ask for a password")
async def test_postgres_away_and_a_wrong_password_are_unavailable(fresh: Settings) -> None:
    with pytest.raises(PostgresUnavailable, match="connect"):
        await migrate(with_other(fresh, postgres_url="postgresql://127.0.0.1:1/x"))
    wrong = url_of(fresh, password="open sesame")
    with pytest.raises(PostgresUnavailable) as caught:
        await migrate(with_other(fresh, postgres_url=wrong))
    assert caught.value.reason == "authentication"
    assert "sesame" not in str(caught.value)


async def test_a_role_without_rights_is_told_which_it_needs(fresh: Settings) -> None:
    role = fresh.postgres_schema + "_weak"
    rows(fresh, f"CREATE ROLE {role} LOGIN PASSWORD 'weak'")
    try:
        weak = url_of(fresh, user=role, password="weak")
        with pytest.raises(ConfigurationError, match=r"permission denied.*owner"):
            await migrate(with_other(fresh, postgres_url=weak))
    finally:
        rows(fresh, f"DROP ROLE {role}")


async def test_a_schema_with_other_tables_of_our_names_is_refused(fresh: Settings) -> None:
    rows(fresh, "CREATE SCHEMA {schema}; CREATE TABLE {schema}.state (mine integer)")
    with pytest.raises(ConfigurationError, match=r"already exists.*choose another"):
        await migrate(fresh)
    assert rows(fresh, "SELECT to_regclass('{schema}.shard')") == [(None,)]


ROWS, SPELLED = Tasks.rows, Tasks.spelled


class Pooled:
    """A connection through a transaction-mode pooler: every transaction on a server connection of its own."""

    closed = broken = False
    info = SimpleNamespace(parameter_status={"server_encoding": "UTF8"}.get)

    def __init__(self, open_one: Any) -> None:
        self.open_one = open_one
        self._current: psycopg.AsyncConnection[Any] | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with await self.open_one() as connection, connection.transaction():
            self._current = connection
            yield
        self._current = None

    async def execute(self, *args: Any) -> Any:
        if self._current is not None:
            return await self._current.execute(*args)
        async with await self.open_one() as connection:
            return await connection.execute(*args)

    async def close(self) -> None:
        pass


def not_yet_spelled(io: Tasks, connection: Pooled, text: str, parameters: Mapping[str, Any]) -> Any:
    """Return what is spelled once there is a server connection."""
    return text, parameters


async def pooled_rows(io: Tasks, connection: Pooled, text: Any, beside: Any) -> Any:
    """Run one message on a server connection that has no other, and return all that came."""
    async with await connection.open_one() as one:
        return await ROWS(io, one, SPELLED(io, one, *text), beside)


async def test_it_keeps_nothing_on_a_connection_between_transactions(
    fresh: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = psycopg.AsyncConnection.connect
    opened: list[Any] = []

    async def pooled(url: str = "", **options: Any) -> Any:
        assert options["prepare_threshold"] is None

        async def open_one() -> Any:
            opened.append(await connect(url, **options))
            return opened[-1]

        return Pooled(open_one)

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", pooled)
    monkeypatch.setattr(Tasks, "spelled", not_yet_spelled)
    monkeypatch.setattr(Tasks, "rows", pooled_rows)
    assert (await migrate(fresh)).shards_opened == SHARDS
    assert await migrate(fresh) == MigrationReport()
    assert len(opened) > 8


def test_the_command_says_what_it_did(
    fresh: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards"):
        monkeypatch.setenv(f"STATECACHE_{name.upper()}", str(getattr(fresh, name)))
    assert run(["migrate"]) == 0
    out = capsys.readouterr().out
    assert "applied 0001_core\n" in out
    assert f"pinned {SHARDS} shards and the prefix {fresh.prefix!r}\n" in out
    assert f"opened {SHARDS} shards at redis://" in out
    assert run(["migrate"]) == 0
    assert capsys.readouterr().out == "nothing to do\n"
    assert run(["migrate", "--redis-url", NOBODY]) == 4
    monkeypatch.setenv("STATECACHE_SHARDS", "8")
    assert run(["migrate"]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 2
    assert "this schema is pinned to shards 4; the settings say 8. Use the same settings everywhere, here " in err
    assert "STATECACHE_SHARDS=4, or the servers that were meant; the shard count changes only by an " in err


def test_an_operator_claims_shards_that_nobody_else_may_open(
    fresh: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards"):
        monkeypatch.setenv(f"STATECACHE_{name.upper()}", str(getattr(fresh, name)))
    assert run(["migrate"]) == 0
    (replid,) = rows(fresh, "SELECT DISTINCT replid FROM {schema}.shard")[0]
    assert run(["epoch", "adopt", "all", "--from", replid]) == 0
    assert capsys.readouterr().out.endswith("nothing to do: these shards are open\n")
    with plain_client(fresh.redis_url) as client:
        client.hset(KeySpace(fresh.prefix, SHARDS).meta(2), "replid", "f" * 40)
    assert run(["migrate"]) == 4
    assert f"`statecache epoch adopt all --from {replid} --to {replid}`" in capsys.readouterr().err
    assert run(["epoch", "adopt", "2"]) == 2
    assert f"`statecache epoch adopt 2 --from {replid} --to {replid}`" in capsys.readouterr().err
    assert run(["epoch", "adopt", "2", "--from", "f" * 40]) == 4
    assert f"say `--from {replid} --to {replid}`" in capsys.readouterr().err
    assert run(["epoch", "adopt", "2", "--from", replid, "--to", "e" * 40]) == 2
    assert f"leads to {replid}, not to {'e' * 40}" in capsys.readouterr().err
    assert rows(fresh, "SELECT max(epoch) FROM {schema}.shard") == [(1,)]
    assert run(["epoch", "adopt", "2", "--from", "f" * 40, "--from", replid, "--to", replid]) == 0
    (epoch,) = rows(fresh, "SELECT epoch FROM {schema}.shard WHERE shard = 2")[0]
    assert epoch > 1
    assert capsys.readouterr().out.startswith(f"shard 2: epoch {epoch}, ")
    assert run(["migrate"]) == 0


async def test_nothing_is_made_where_the_redis_is_pinned_to_something_else(fresh: Settings) -> None:
    await migrate(fresh)
    (old,) = rows(fresh, "SELECT id::text FROM {schema}.cluster")[0]
    second = f"{fresh.postgres_schema}_second"
    with pytest.raises(ConfigurationError, match=f"pinned to postgres_schema {fresh.postgres_schema}"):
        await migrate(with_other(fresh, postgres_schema=second))
    assert rows(fresh, f"SELECT to_regnamespace('{second}')") == [(None,)]
    rows(fresh, "DROP SCHEMA {schema} CASCADE")
    with pytest.raises(ConfigurationError, match=f"cluster {old}, .* to none yet"):
        await migrate(fresh)
    assert rows(fresh, f"SELECT to_regnamespace('{fresh.postgres_schema}')") == [(None,)]


async def test_who_could_read_the_changes_may_read_what_later_schemas_keep_of_them(
    fresh: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents of the release before go on with the roles that they have."""
    reader = f"reader_{fresh.postgres_schema}"
    with monkeypatch.context() as earlier:
        earlier.setattr(module, "migrations", lambda schema: migrations(schema)[:6])
        await migrate(fresh)
    with psycopg.connect(fresh.postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{reader}"'.encode())
        try:
            connection.execute(f'GRANT SELECT ON "{fresh.postgres_schema}".change TO "{reader}"'.encode())
            begin = f'GRANT EXECUTE ON FUNCTION "{fresh.postgres_schema}".begin_epoch TO "{reader}"'
            connection.execute(begin.encode())
            await migrate(fresh)
            asked = "SELECT has_table_privilege(%s, %s, 'SELECT'), has_table_privilege(%s, %s, 'INSERT')"
            for name in ("lost_change", "late_change", "consumer"):
                table = f'"{fresh.postgres_schema}".{name}'
                assert connection.execute(asked, [reader, table, reader, table]).fetchone() == (True, False)
            may = (
                "SELECT count(*) FROM pg_proc WHERE proname LIKE '%%_consumer' AND pronamespace = %s::regnamespace"
                " AND has_function_privilege(%s, oid, 'EXECUTE')"
            )
            assert connection.execute(may, [fresh.postgres_schema, reader]).fetchone() == (2,)
        finally:
            connection.execute(f'DROP OWNED BY "{reader}"'.encode())
            connection.execute(f'DROP ROLE "{reader}"'.encode())


def test_no_function_that_catches_errors_may_run_in_a_parallel_plan(settings: Settings) -> None:
    """Before Postgres 18 such a plan is refused, as soon as there are states enough for one."""
    found = rows(
        settings,
        "SELECT proname, proparallel FROM pg_proc "
        "WHERE pronamespace = '{schema}'::regnamespace AND prosrc ~ 'EXCEPTION'",
    )
    assert ("json_or_null", "u") in found
    assert {parallel for _, parallel in found} == {"u"}
