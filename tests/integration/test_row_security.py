"""Row-level security on a table: what it would hide is refused, and never counts as not there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    ConfigurationError,
    PostgresUnavailable,
    Settings,
    StateCacheError,
    VersionNotFound,
)
from statecache.errors import AlreadyExists
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import MakeWorker, flush, rows
from tests.support.command_line import CommandLine

Psql = psycopg.Connection[Any]

TABLES = ("state", "change", "branch", "conflict", "quarantine", "lost", "shard", "epoch", "cluster", "retention")


@pytest.fixture
def limited(settings: Settings, psql: Psql) -> Iterator[Settings]:
    """Settings of a role that owns nothing, and has all rights."""
    schema, role = settings.postgres_schema, f"{settings.postgres_schema}_one"
    psql.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA {schema} TO {role};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};"
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}".encode()
    )
    url = urlsplit(settings.postgres_url)
    url = url._replace(netloc=f"{role}:secret@{url.netloc.rpartition('@')[2]}")
    yield settings.model_copy(update={"postgres_url": url.geturl(), "timeout_s": 3.0})
    psql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.fixture
def owned(settings: Settings, psql: Psql) -> Iterator[str]:
    """Have the schema belong to a role that is no superuser, as `config/roles.sql` does; give its name."""
    schema, role = settings.postgres_schema, f"{settings.postgres_schema}_owner"
    psql.execute(f"CREATE ROLE {role}; ALTER SCHEMA {schema} OWNER TO {role}".encode())
    for kind, names in (
        ("TABLE", "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"),
        ("FUNCTION", "SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"),
    ):
        for (name,) in rows(psql, names):
            psql.execute(f"ALTER {kind} {name} OWNER TO {role}".encode())
    yield role
    psql.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP ROLE {role}".encode())


NOT_READ = ("conflict", "lock_token", "branch")
"""What a flush of plain changes neither reads nor writes."""


async def _listed(cache: AsyncStateCache) -> list[str]:
    return [state.key async for state in cache.list("runs/")]


async def _versions(cache: AsyncStateCache) -> list[int]:
    return [change.version async for change in cache.history("runs/1")]


async def _value(cache: AsyncStateCache) -> Any:
    state = await cache.get("runs/1")
    return state and state.value


async def _created(cache: AsyncStateCache) -> str:
    try:
        await cache.create("runs/2", 9)
    except AlreadyExists:
        return "exists"
    return "created"


async def _first(cache: AsyncStateCache) -> Any:
    try:
        state = await cache.get_at("runs/1", version=1)
    except VersionNotFound:
        return None
    return state and state.value


CALLS: dict[str, tuple[Callable[[AsyncStateCache], Awaitable[Any]], Any]] = {
    "get": (_value, 5),
    "list": (_listed, ["runs/1", "runs/2"]),
    "create": (_created, "exists"),
    "history": (_versions, [1, 2]),
    "get_at": (_first, 1),
}


@pytest.mark.parametrize("table", TABLES)
async def test_an_agent_reads_what_is_there_or_is_refused(
    settings: Settings, limited: Settings, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace, table: str
) -> None:
    async with AsyncStateCache(settings=settings) as cache:
        for key, value in (("runs/1", 1), ("runs/2", 2), ("runs/1", 5)):
            await cache.set(key, value)
        await flush(worker)
    refused = set()
    for what, (call, expected) in CALLS.items():
        redis_raw.delete(keys.state("runs/1"), keys.state("runs/2"))
        psql.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY".encode())
        async with AsyncStateCache(settings=limited) as cache:
            met: StateCacheError | None = None
            try:
                assert await call(cache) == expected
            except StateCacheError as error:
                met = error
        if met is not None:
            refused.add(what)
            assert isinstance(met, ConfigurationError)
            assert f'row-level security policy for table "{table}"' in str(met)
            assert "BYPASSRLS" in str(met)
        psql.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY".encode())
    assert refused >= {"state": {"get", "list", "create"}, "change": {"history", "get_at"}, "cluster": {*CALLS}}.get(
        table, set()
    )
    await flush(worker)
    assert rows(psql, "SELECT key FROM conflict") == []


async def test_an_agent_at_work_is_refused_too(
    settings: Settings, limited: Settings, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    async with AsyncStateCache(settings=limited) as cache:
        await cache.set("runs/1", 5)
        await flush(worker)
        assert await cache.get("runs/2") is None
        redis_raw.delete(keys.state("runs/1"))
        psql.execute("ALTER TABLE state ENABLE ROW LEVEL SECURITY")
        with pytest.raises(PostgresUnavailable, match="row-level security"):
            await cache.get("runs/1", read="primary", timeout=1)
        psql.execute("ALTER TABLE state DISABLE ROW LEVEL SECURITY")
        assert await _value(cache) == 5


@pytest.mark.parametrize("table", ["state", "change", "conflict", "shard", "lock_token", "branch"])
async def test_a_worker_flushes_nothing_on_what_it_cannot_see(
    settings: Settings, limited: Settings, make_worker: MakeWorker, psql: Psql, table: str
) -> None:
    worker = make_worker(limited)
    async with AsyncStateCache(settings=settings) as cache:
        await cache.set("runs/1", 1)
        await flush(worker)
        psql.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY".encode())
        worker.flusher.tips.clear()
        await cache.set("runs/1", 2)
        await cache.set("runs/2", 2)
        told = ""
        try:
            await flush(worker)
        except StateCacheError as error:
            told = str(error)
        assert "row-level security" in told or (told == "" and table in NOT_READ)
        psql.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY".encode())
        await flush(worker)
    assert rows(psql, "SELECT key, version FROM state ORDER BY key") == [("runs/1", 2), ("runs/2", 1)]
    assert rows(psql, "SELECT key FROM conflict") == []


COMMANDS = (
    "status", "verify", "lost", "ls runs/", "log runs/1", "show runs/1@1", "schemas", "quarantine list", "policy",
    "prune --dry-run", "vectors list", "erase runs/1 --dry-run",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
async def test_no_command_takes_what_is_hidden_for_not_there(
    settings: Settings, limited: Settings, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], command: str,
) -> None:  # fmt: skip
    async with AsyncStateCache(settings=settings) as cache:
        await cache.set("runs/1", 1)
        await flush(worker)
    for (table,) in rows(psql, "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"):
        if table != "cluster":  # nothing would be asked behind it
            psql.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY".encode())
    ended = await CommandLine(limited, monkeypatch, capsys).beside(*command.split())
    assert ended.status != 0
    assert "row-level security" in ended.out + ended.err


async def test_the_doctor_names_the_tables_and_misses_nothing_in_them(
    settings: Settings, limited: Settings, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    async with AsyncStateCache(settings=settings) as cache:
        await cache.set("runs/1", 1)
        await flush(worker)
    cli = CommandLine(limited, monkeypatch, capsys)
    assert "row-level security" not in (await cli.beside("doctor")).out
    psql.execute("ALTER TABLE state ENABLE ROW LEVEL SECURITY; ALTER TABLE migration ENABLE ROW LEVEL SECURITY")
    told = (await cli.beside("doctor")).out
    assert f"row-level security is on for the role {limited.postgres_schema}_one and migration, state" in told
    assert "in part" not in told
    assert "are not applied" not in told


async def _consumed(cache: AsyncStateCache) -> None:
    async with cache.changes("runs/", consumer="billing", follow=False) as feed:
        assert [change.key async for change in feed] == []


async def test_the_owner_as_which_functions_run_is_named_where_it_sees_too_little(
    limited: Settings, owned: str, psql: Psql, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Row-level security that is forced binds it, whatever the role that calls them may."""
    limited = limited.model_copy(update={"reservation_s": 0.2})
    psql.execute(f"ALTER ROLE {limited.postgres_schema}_one BYPASSRLS".encode())
    cli = CommandLine(limited, monkeypatch, capsys)
    assert "row-level security" not in (await cli.beside("doctor")).out
    calls: dict[str, Callable[[AsyncStateCache], Awaitable[Any]]] = {
        "shard": lambda cache: cache.set("runs/1", 1),
        "namespace": lambda cache: cache.namespace("kept", locking="enforced").set("1", 1),
        "consumer": _consumed,
    }
    meta = keys.meta(keys.shard("runs/1"))  # whose gate is closed, as by a failover
    redis_raw.hset(meta, mapping={"continues": redis_raw.hget(meta, "replid"), "replid": ""})
    for table, call in calls.items():
        psql.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY".encode())
        async with AsyncStateCache(settings=limited) as cache:
            with pytest.raises(ConfigurationError, match=f'"{table}" .its owner.* has no BYPASSRLS.*tables. owner'):
                await call(cache)
        told = (await cli.beside("doctor")).out
        assert f"row-level security is on for {owned}, as which the schema's functions run, and {table}" in told
        assert f"ALTER ROLE {owned} BYPASSRLS" in told
        psql.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY".encode())
        assert "row-level security" not in (await cli.beside("doctor")).out
        async with AsyncStateCache(settings=limited) as cache:
            await call(cache)
