"""Whatever a role's or a database's defaults are, a deployment works: everything relied on is set by us."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, ConfigurationError, PostgresUnavailable, Settings, Unavailable
from statecache.core.postgres.connection import committed
from statecache.core.postgres.migrate import migrate
from statecache.core.postgres.vector_indexes import create
from statecache.keys import KeySpace
from statecache.rules.filters import Selection
from statecache.rules.retention import retention_of
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, flush_through, flushing, rows
from tests.fixtures.servers import MakeSettings, Site, plain_client
from tests.support.command_line import CommandLine
from tests.support.polling import pause
from tests.support.vectors import DIMS, QUERY, found, near, need_pgvector, table

KEY = "runs/réunion/Ωmega"
DEFAULTS = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "client_min_messages": "error",
    "DateStyle": "German, DMY",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "extra_float_digits": "-15",
    "idle_in_transaction_session_timeout": "1s",
    "IntervalStyle": "sql_standard",
    "quote_all_identifiers": "on",
    "row_security": "off",
    "search_path": "nowhere",
    "session_replication_role": "replica",
    "standard_conforming_strings": "off",
    "synchronous_commit": "off",
    "TimeZone": "Asia/Kathmandu",
    "transform_null_equals": "on",
    "xmlbinary": "hex",
}
READ_ONLY = "default_transaction_read_only is on"
_numbers = count(1)

Psql = psycopg.Connection[Any]


@contextmanager
def _database(site: Site, encoding: str = "UTF8") -> Iterator[tuple[str, str]]:
    """Make a database and a superuser of its own, and give the name of both and the URL."""
    name = f"odd{os.getpid()}_{next(_numbers)}"
    locale = "LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
    site.postgres.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' {locale}".encode())
    site.postgres.execute(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'odd'".encode())
    facts: dict[str, Any] = {**psycopg.conninfo.conninfo_to_dict(site.postgres_url)}
    facts |= {"dbname": name, "user": name, "password": "odd"}
    address = f"{facts['host']}:{facts['port']}"
    yield name, f"postgresql://{name}:odd@{address}/{name}"
    site.postgres.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    site.postgres.execute(f"DROP ROLE {name}".encode())


@asynccontextmanager
async def _world(settings: Settings) -> AsyncIterator[tuple[Worker, AsyncStateCache, Agents, Psql]]:
    path = f"-c search_path={settings.postgres_schema}"
    worker = Worker(settings)
    try:
        with (
            plain_client(settings.redis_url) as raw,
            psycopg.connect(settings.postgres_url, autocommit=True, options=path, client_encoding="UTF8") as psql,
        ):
            async with AsyncStateCache(settings=settings) as cache:
                yield worker, cache, Agents(settings, KeySpace(settings.prefix, settings.shards), raw), psql
    finally:
        await worker.close()


async def _round(settings: Settings) -> None:
    """Commit, flush, evict, read, list, and set a fork aside."""
    await migrate(settings)
    async with _world(settings) as (worker, cache, agents, psql):
        await flush(worker)
        async with flushing(worker):
            first = await cache.set(KEY, {"name": "Zoë"}, durability="postgres")
        shard = agents.keys.shard(KEY)
        agents.raw.delete(agents.keys.state(KEY))
        again = await cache.get(KEY)
        assert again is not None
        assert (again.value, again.change_id, again.updated_at) == ({"name": "Zoë"}, first.change_id, first.updated_at)
        assert [state.key async for state in cache.list("runs/réunion/")] == [KEY]
        agents.raw.delete(agents.keys.state(KEY))
        agents.commit({"key": KEY, "new": "1"}, writer="jürgen")
        await flush(worker)
        assert rows(psql, "SELECT key, change_id FROM state") == [(KEY, first.change_id)]
        assert rows(psql, "SELECT key, writer FROM conflict") == [(KEY, "jürgen")]
        assert rows(psql, "SELECT count(*) FROM quarantine") == [(0,)]
        restored = await cache.get(KEY)
        assert restored is not None
        assert restored.change_id == first.change_id
        assert int(agents.meta(shard)["flushed"]) == 2


@pytest.mark.parametrize("of", ["ROLE", "DATABASE"])
@pytest.mark.parametrize("name", DEFAULTS)
async def test_defaults_of_a_role_or_a_database_change_nothing(
    make_settings: MakeSettings, site: Site, name: str, of: str
) -> None:
    with _database(site) as (odd, url):
        value = DEFAULTS[name]
        site.postgres.execute(f"ALTER {of} {odd} SET {name} = '{value}'".encode())
        await _round(make_settings(migrated=False, postgres_url=url))


async def test_what_is_missing_in_a_list_is_no_text_in_what_is_written(make_settings: MakeSettings, site: Site) -> None:
    with _database(site) as (odd, url):
        site.postgres.execute(f"ALTER ROLE {odd} SET array_nulls = off".encode())
        settings = make_settings(migrated=False, postgres_url=url)
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        async with connection, committed(connection, settings, seconds=5):
            found = await (await connection.execute("SELECT unnest(%s::text[])", [[None, "NULL"]])).fetchall()
    assert found == [(None,), ("NULL",)]


@pytest.mark.parametrize("style", ["iso_8601", "postgres_verbose", "sql_standard"])
async def test_policies_and_places_of_readers_are_read_and_kept_whatever_the_defaults_are(
    make_settings: MakeSettings, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    style: str,
) -> None:  # fmt: skip
    with _database(site) as (odd, url):
        site.postgres.execute(f"ALTER ROLE {odd} SET IntervalStyle = '{style}'".encode())
        site.postgres.execute(f"ALTER ROLE {odd} SET synchronous_commit = off".encode())
        settings = make_settings(migrated=False, postgres_url=url)
        await migrate(settings)
        cli = CommandLine(settings, monkeypatch, capsys)
        async with _world(settings) as (worker, cache, _, psql):
            _note_commits(psql, "retention", "consumer")
            await cache.namespace("aged", retention=timedelta(hours=26)).set("1", 1)
            told = await cli.beside("policy", "runs", "--retention", "36h", "--yes")
            assert (told.status, told.err) == (0, "")
            await cache.set("runs/1", 1)
            await flush(worker)
            assert rows(psql, "SELECT count(*) FROM change") == [(2,)]
            told = await cli.beside("policy", "aged", "--json")
            assert (told.status, "93600" in told.out) == (0, True)
            async with cache.changes("runs/", consumer="billing", follow=False) as feed:
                assert [one.key async for one in feed] == ["runs/1"]
            assert set(rows(psql, "SELECT made, waits FROM noted")) == {("retention", "on"), ("consumer", "on")}


async def test_ages_and_distances_are_what_they_are_however_few_digits_a_float_has(
    make_settings: MakeSettings, site: Site
) -> None:
    with _database(site) as (odd, url):
        site.postgres.execute(f"ALTER ROLE {odd} SET extra_float_digits = -15".encode())
        settings = make_settings(migrated=False, postgres_url=url)
        await migrate(settings)
        async with _world(settings) as (worker, cache, _, psql):
            fetch = partial(cache._runtime.postgres.fetch, seconds=10)
            kept: dict[str, Any] = {"name": "runs", "history": "full", "age": timedelta(seconds=14.5), "count": None}
            ages = [(await fetch("declare_history", kept | {"by": "test"}))[0][1]]
            ages.append((await fetch("history_policies", {}))[0][2])
            taken = {"holder": "test", "lease": timedelta(minutes=1), "every": timedelta(0)}
            ages.append((await fetch("prune_take", taken))[0][4])
            done = {"name": "runs", "holder": "test", "key": "", "version": 0, "values": 0, "bytes": 0}
            ages.append((await fetch("prune_keep", done | {"ended": True, "lease": taken["lease"]}))[0][1])
            assert [retention_of("full", age, None).max_age for age in ages] == [kept["age"]] * 4
            need_pgvector(psql)
            await create(settings, "notes", member="vectors", dims=DIMS)
            await _take_in(psql)
            await cache.set_many({"notes/a": {"vectors": near(0.75)}, "notes/b": {"vectors": near(0.875)}})
            await flush(worker)
            await _take_in(psql, "notes/a", "notes/b")
            asked = {"namespace": "notes", "vector": f"{{{','.join(map(str, QUERY))}}}", "waiting": 1, "limit": 2}
            asked |= Selection(prefix="notes/").bounds()
            _, farthest, _ = (await fetch("list_nearest", asked))[0][-3:]
            assert float(farthest) == pytest.approx(0.25, abs=0.002)


def _note_commits(psql: Psql, *tables: str) -> None:
    """Have each write to these tables leave whether its COMMIT waits for the disk."""
    psql.execute("CREATE TABLE noted (made text, waits text)")
    psql.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" INSERT INTO {psql.execute('SELECT current_schema()').fetchone()[0]}.noted"  # type: ignore[index]
        " VALUES (TG_TABLE_NAME, current_setting('synchronous_commit')); RETURN NULL; END $$".encode()
    )
    for name in tables:
        psql.execute(f"CREATE TRIGGER note AFTER INSERT OR UPDATE ON {name} EXECUTE FUNCTION note()".encode())


@pytest.mark.parametrize("of", ["ROLE", "DATABASE"])
async def test_vectors_are_indexed_where_triggers_are_those_of_a_replica_by_default(
    make_settings: MakeSettings, site: Site, of: str
) -> None:
    """Ordinary triggers do not fire there, and an index that nobody tells what changes would be searched."""
    with _database(site) as (odd, url):
        site.postgres.execute(f"ALTER {of} {odd} SET session_replication_role = 'replica'".encode())
        settings = make_settings(migrated=False, postgres_url=url)
        await migrate(settings)
        async with _world(settings) as (worker, cache, _, psql):
            need_pgvector(psql)
            await create(settings, "notes", member="vectors", dims=DIMS)
            await _take_in(psql)
            await cache.set_many({"notes/a": {"vectors": near(0.1)}, "notes/b": {"vectors": near(0.2)}})
            await flush(worker)
            assert await found(cache) == ["notes/b", "notes/a"]
            await _take_in(psql, "notes/a", "notes/b")
            await cache.delete("notes/a")
            await flush(worker)
            assert await found(cache) == ["notes/b"]
            await _take_in(psql, "notes/b")


async def _take_in(psql: Psql, *keys: str) -> None:
    """Have these indexed and no others, here or by the worker that has begun to."""
    async with asyncio.timeout(20):
        while [key for key, _ in table(psql)] != [*keys] or rows(psql, "SELECT FROM vector_pending") != []:
            psql.execute("SELECT index_vectors(1000)")
            await pause()


async def test_a_role_that_reads_only_by_default_is_taken_at_its_word_and_says_so(
    make_settings: MakeSettings, site: Site, redis_raw: Any
) -> None:
    """It is set on purpose, as on a role for people who look."""
    with _database(site) as (odd, url):
        settings = make_settings(migrated=False, postgres_url=url)
        await migrate(settings)
        site.postgres.execute(f"ALTER ROLE {odd} SET default_transaction_read_only = on".encode())
        with pytest.raises(ConfigurationError, match=READ_ONLY):
            await migrate(settings)
        async with AsyncStateCache(settings=settings) as cache:
            await cache.set(KEY, 1)
            with pytest.raises(PostgresUnavailable, match=READ_ONLY):
                await cache.namespace("runs", locking="enforced").set("new", 1)
            meta = (keys := KeySpace(settings.prefix, settings.shards)).meta(keys.shard(KEY))
            redis_raw.hset(meta, mapping={"continues": redis_raw.hget(meta, "replid"), "replid": ""})
            with pytest.raises(Unavailable, match=READ_ONLY) as caught:
                await cache.set(KEY, 2, timeout=1)
        assert caught.value.reason == "epoch"


async def test_a_role_that_reads_only_by_default_is_told_what_was_lost(make_settings: MakeSettings, site: Site) -> None:
    with _database(site) as (odd, url):
        settings = make_settings(migrated=False, postgres_url=url)
        await migrate(settings)
        site.postgres.execute(f"ALTER ROLE {odd} SET default_transaction_read_only = on".encode())
        async with _world(settings) as (_, cache, agents, psql):
            lost = await cache.set(KEY, 1)
            assert await cache.lost() == ()
            psql.execute("SET default_transaction_read_only = off")
            psql.execute(
                "INSERT INTO epoch (shard, epoch, start_n, replid, opened_by) VALUES (%s, %s, 0, '', '')",
                (agents.keys.shard(KEY), lost.epoch + 1),
            )
            (told,) = await cache.lost()
            assert (told.change_id, told.position, told.ended_by) == (lost.change_id, lost.position, lost.epoch + 1)
            assert rows(psql, "SELECT * FROM lost") == []


async def test_the_doctor_sets_its_own_limits(
    make_settings: MakeSettings, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with _database(site) as (odd, url):
        settings = make_settings(migrated=False, postgres_url=url)
        await migrate(settings)
        site.postgres.execute(f"ALTER ROLE {odd} SET statement_timeout = '50ms'".encode())
        waits = (
            "SELECT FROM pg_stat_activity WHERE application_name = 'statecache doctor' AND usename = %s"
            " AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '200ms'"
        )
        with psycopg.connect(url, autocommit=True) as psql:
            psql.execute("SET statement_timeout = 0")
            with psql.transaction():
                psql.execute(f"LOCK TABLE {settings.postgres_schema}.cluster IN ACCESS EXCLUSIVE MODE".encode())
                asked = asyncio.create_task(
                    asyncio.to_thread(CommandLine(settings, monkeypatch, capsys), "doctor", "--json")
                )
                while not (asked.done() or site.postgres.execute(waits, (odd,)).fetchall()):
                    await pause()
        found = (await asked).json["findings"]
        assert [one["what"] for one in found if "unreachable" in one["what"] or "timeout" in one["what"]] == [
            "idle_in_transaction_session_timeout is 0"
        ]


async def test_the_encoding_of_the_environment_changes_nothing(
    make_settings: MakeSettings, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with _database(site) as (_, url):
        await _round(make_settings(migrated=False, postgres_url=url))


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_of_another_encoding_is_refused_and_named(
    make_settings: MakeSettings,
    site: Site,
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _database(site, encoding) as (_, url):
        settings = make_settings(migrated=False, postgres_url=url)
        with pytest.raises(ConfigurationError, match=f"{encoding}.*ENCODING 'UTF8'"):
            await migrate(settings)
        ended = await asyncio.to_thread(CommandLine(settings, monkeypatch, capsys), "doctor", "--json")
        (found,) = [one for one in ended.json["findings"] if "encoding" in one["what"]]
        assert (found["severity"], encoding in found["what"]) == ("error", True)
        assert "ENCODING 'UTF8'" in found["remedy"]


async def test_a_default_timeout_of_transactions_bounds_nothing_of_ours(
    make_settings: MakeSettings, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Postgres goes on with the timer that such a default has started, unless it is stopped first."""
    if site.postgres.info.server_version < 170_000:
        pytest.skip("Postgres has such a timeout from 17 on")
    with _database(site) as (odd, url):
        settings = make_settings(migrated=False, postgres_url=url)
        await migrate(settings)
        async with _world(settings) as (worker, cache, _, psql):
            await flush(worker)
            psql.execute("SET transaction_timeout = 0")
            site.postgres.execute(f"ALTER ROLE {odd} SET transaction_timeout = '200ms'".encode())
            for (pid,) in rows(psql, "SELECT pid FROM pg_stat_activity WHERE usename = %s", odd):
                if pid != psql.info.backend_pid:
                    psql.execute("SELECT pg_terminate_backend(%s)", (pid,))
            await cache.set(KEY, 1)
            await _slowly(site, psql, "state", lambda: flush_through(worker))
            await _slowly(site, psql, "shard", lambda: cache.get(KEY, read="fenced"))
            await _slowly(site, psql, "state", lambda: _listed(cache))
            assert await _slowly(site, psql, "state", lambda: cache.get("runs/none")) is None
            command = CommandLine(settings, monkeypatch, capsys)
            ended = await _slowly(site, psql, "lost", lambda: asyncio.to_thread(command, "lost"))
            assert ended.status == 0, ended


async def _listed(cache: AsyncStateCache) -> None:
    assert [state.key async for state in cache.list("runs/réunion/")] == [KEY]


async def _slowly(site: Site, psql: Psql, table: str, verb: Callable[[], Awaitable[Any]]) -> Any:
    """Run something that has to wait for a table in Postgres, for longer than the default would allow."""
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = %s"
    waits += " AND clock_timestamp() - query_start > interval '400ms'"
    with psql.transaction():
        psql.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        task = asyncio.ensure_future(verb())
        while not (task.done() or site.postgres.execute(waits, (psql.info.user,)).fetchall()):
            await pause()
    async with asyncio.timeout(20):
        return await task
