"""What `doctor` asks a Postgres, and what it makes of the answers. Pins are not compared first: a finding says more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg import errors as pg

from statecache.cli.doctor import postgres_rights
from statecache.cli.doctor.findings import Finding, error, note, warning
from statecache.cli.doctor.postgres_rights import Refused, hidden_of, may_read
from statecache.cli.schema_check import Lack, lack_of, unapplied, unapplied_text
from statecache.cli.status.table_locks import told_apart
from statecache.cli.vector_troubles import vector_troubles
from statecache.clock import wall
from statecache.concurrency import TASKS
from statecache.core.postgres.connection import brief, connect, milliseconds
from statecache.core.postgres.transactions import message
from statecache.errors import PostgresUnavailable
from statecache.keys import GROUP_RULE, HASH
from statecache.rules.looks import ShardRow
from statecache.settings import masked, pin_difference, renaming
from statecache.sql import CODE, migrations

if TYPE_CHECKING:
    from statecache.settings import Settings

VERSION_MIN = 150000
SETTINGS = (
    "fsync", "synchronous_commit", "full_page_writes", "synchronous_standby_names", "max_connections",
    "superuser_reserved_connections", "reserved_connections", "idle_in_transaction_session_timeout",
    "idle_session_timeout", "default_transaction_read_only",
)  # fmt: skip


class PostgresFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a Postgres said; None is what it would not say."""

    version: str
    version_num: int
    settings: Mapping[str, str]
    standby: bool
    role: str
    encoding: str
    standbys: Sequence[tuple[str, str | None]]
    connections: int
    tables: Refused
    may_use: bool | None
    functions: Mapping[str, bool]
    """Of each function of the schema, whether this role may run it."""
    applied: Sequence[int] | None
    cluster: Sequence[Any] | None
    renamed: tuple[str, str] = ("", "")
    """How the schema differs from the one that its functions name, and what to do; empty texts where it does not."""
    ahead_s: float
    unowned: tuple[int, int] | None = None
    """How many shards have no live worker, of how many; None where this role may not see the workers."""
    lacking: Lack = Lack()
    """What the migrations make and this schema lacks, as far as this role may see it."""
    hindered: Sequence[tuple[str, str, int]] = ()
    """Live workers that tell of trouble: which, what, and how many shards they leave to others."""
    vectors: Sequence[tuple[str, int, str]] = ()
    """Indexes of vectors with how many states they have refused, and what is in their way; '' where nothing is."""
    rows: Sequence[ShardRow] = ()
    """The shards' rows; none where this role may not see them."""

    @property
    def behind(self) -> list[int]:
        """Which migrations are still to be applied."""
        return unapplied(self.applied)


async def ask(settings: Settings) -> PostgresFacts:
    """Ask a Postgres; raise PostgresUnavailable without an answer, ConfigurationError where the URL fits nothing."""
    where = masked(settings.postgres_url)
    try:
        async with asyncio.timeout(settings.connect_timeout_s + settings.timeout_s):
            connection = await connect(settings, "statecache doctor")
            async with connection:
                return await _facts(settings, connection)
    except TimeoutError as late:
        raise PostgresUnavailable("timeout", detail=f"{where}: no answer") from late
    except psycopg.Error as failed:
        waited = isinstance(failed, (pg.QueryCanceled, pg.LockNotAvailable))
        locks = await told_apart(settings) if waited else ""
        raise PostgresUnavailable("connection", detail=": ".join(filter(None, [where, brief(failed), locks]))) from None


async def _facts(settings: Settings, connection: psycopg.AsyncConnection[Any]) -> PostgresFacts:
    for verb in ("BEGIN", "COMMIT"):  # a pooler of single statements refuses that, and says so here alone
        await connection.execute(verb)
    before = wall()
    server = await _one(settings, connection, "doctor_server", {"names": list(SETTINGS)})
    middle = before + (wall() - before) / 2
    rights = await _one(settings, connection, "doctor_rights", {"schema": settings.postgres_schema})
    tables = rights["tables"] or {}
    applied = cluster = named = None

    def readable(*names: str) -> bool:
        return bool(rights["usage"]) and all(may_read(tables.get(name)) for name in names)

    if readable("migration"):
        applied = [row[0] for row in await _rows(settings, connection, "migrate_seen", {})]
    if readable("cluster") and (pinned := await _rows(settings, connection, "cluster", {})):
        *cluster, named = pinned[0]
    rows: list[ShardRow] = []
    unowned, hindered = None, []
    behind = applied is not None and not {step.number for step in migrations(settings.postgres_schema)} <= {*applied}

    if readable("worker", "shard") and not behind:  # the schema of an earlier release lacks columns
        (row,) = await _rows(settings, connection, "worker_census", {})
        unowned = (row[1], settings.shards)
        hindered = [(row[0], row[1], row[2]) for row in await _rows(settings, connection, "doctor_workers", {})]
    vectors = await _rows(settings, connection, "vector_troubles", {}) if readable("vector_index") else []
    if cluster and readable("shard"):
        asked = {"shards": list(range(settings.shards))}
        rows = [
            ShardRow(shard=shard, epoch=epoch, replid=replid, flushed=flushed, cluster=cluster[0])
            for shard, epoch, replid, flushed, *_ in await _rows(settings, connection, "shard_rows", asked)
        ]
    missing = await _rows(settings, connection, "schema_missing", {"schema": settings.postgres_schema})
    if readable("change", "state", "shard", "epoch", "lost", "conflict", "quarantine"):
        missing += await _rows(settings, connection, "rows_missing", {})
    if applied == [] and set(tables) > {"migration"}:
        missing.append(("the rows of migration",))
    counted = cluster is not None and cluster[1] == settings.shards and readable("shard")
    lacking = lack_of(
        missing,
        pinned=cluster is not None or not readable("cluster"),
        rows=len(rows) if counted else settings.shards,
        shards=settings.shards,
    )
    return PostgresFacts(
        rows=rows,
        lacking=lacking,
        unowned=unowned,
        hindered=hindered,
        vectors=[(namespace, refused, trouble) for namespace, refused, trouble in vectors],
        version=server["version"],
        version_num=server["version_num"],
        settings=server["settings"],
        standby=server["standby"],
        role=server["role"],
        encoding=server["encoding"],
        standbys=[(name, state) for name, state in server["standbys"]],
        connections=int(server["connections"]),
        tables=tables,
        may_use=rights["usage"],
        functions=rights["functions"] or {},
        applied=applied,
        cluster=cluster,
        renamed=renaming(settings.postgres_schema, named),
        ahead_s=float(server["now"]) - middle.timestamp(),
    )


async def _rows(settings: Settings, connection: psycopg.AsyncConnection[Any], name: str, parameters: Any) -> list[Any]:
    """Return the rows of a statement that is bounded by us, whatever the role's own limits are."""
    asked = {**parameters, "statement": milliseconds(settings.timeout_s)}
    text = TASKS.spelled(connection, message("doctor_limits", [name], settings.postgres_schema), asked)
    *_, rows = await TASKS.rows(connection, text, None)
    return rows


async def _one(settings: Settings, connection: psycopg.AsyncConnection[Any], name: str, parameters: Any) -> Any:
    return (await _rows(settings, connection, name, parameters))[0][0]


def findings(facts: PostgresFacts, settings: Settings, *, worker: bool) -> Iterator[Finding]:
    """Yield what is wrong by the answers. Pure."""
    yield from _what_it_is(facts)
    yield from _what_it_keeps(facts)
    yield from _connections(facts, settings)
    yield from _schema(facts, settings)
    yield from _rights(facts, worker=worker)
    yield from _workers(facts)
    for trouble in vector_troubles(facts.vectors):
        yield warning("postgres", *trouble)


def _what_it_is(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.version_num < VERSION_MIN:
        yield error("postgres", f"this is Postgres {facts.version}", "it is not tested with less than 15",
                    "upgrade Postgres")  # fmt: skip
    if facts.standby:
        yield error("postgres", "this is a standby", "nothing can be flushed into it, no epoch begun",
                    "give the primary's URL: STATECACHE_POSTGRES_URL")  # fmt: skip
    elif facts.settings.get("default_transaction_read_only") == "on":
        yield warning("postgres", f"the role {facts.role} reads only (default_transaction_read_only)",
                      "it can open no gate after a failover, migrate nothing, record no policy",
                      f"ALTER ROLE {facts.role} SET default_transaction_read_only = off")  # fmt: skip
    if facts.encoding != "UTF8":
        yield error("postgres", f"the database's encoding is {facts.encoding}",
                    "`statecache migrate` refuses it; text that it cannot hold ends in quarantine",
                    "move to another: CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'")  # fmt: skip


def _what_it_keeps(facts: PostgresFacts) -> Iterator[Finding]:
    have = facts.settings.get
    system = "ALTER SYSTEM SET {} = on; SELECT pg_reload_conf()"
    if have("fsync") == "off":
        yield error("postgres", "fsync is off", "a crash of the machine can destroy the database",
                    system.format("fsync"))  # fmt: skip
    if have("full_page_writes") == "off":
        yield error("postgres", "full_page_writes is off", "a crash in the middle of a write can tear pages",
                    system.format("full_page_writes"))  # fmt: skip
    if have("synchronous_commit") in ("off", "local"):
        yield note("postgres", f"synchronous_commit is {have('synchronous_commit')}",
                   "workers and begin_epoch ask for `on` in their transactions; other programs' commits may be lost",
                   system.format("synchronous_commit"))  # fmt: skip
    names = have("synchronous_standby_names", "")
    if facts.standbys and not names:
        yield warning("postgres", f"{len(facts.standbys)} standbys, and synchronous_standby_names is empty",
                      "a standby that takes over may lack the last commits, those of `postgres` durability too",
                      "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf()")  # fmt: skip
    elif names and not any(state in ("sync", "quorum") for _, state in facts.standbys):
        unseen = facts.standbys and all(state is None for _, state in facts.standbys)
        what = f"synchronous_standby_names is {names!r}, and no synchronous standby is seen"
        if unseen:
            yield note("postgres", what, "pg_stat_replication does not tell this role",
                       f"GRANT pg_monitor TO {facts.role}")  # fmt: skip
        else:
            yield error(
                "postgres", what, "every COMMIT waits for ever", "bring the standby back, or take it off the list"
            )


def _connections(facts: PostgresFacts, settings: Settings) -> Iterator[Finding]:
    have = facts.settings.get
    reserved = int(have("superuser_reserved_connections", 0)) + int(have("reserved_connections", 0))
    left = int(have("max_connections", 0)) - reserved - facts.connections
    if left < 2 * settings.postgres_connections_max:
        yield warning(
            "postgres", f"{left} of {have('max_connections')} connections are left",
            f"a client takes up to {settings.postgres_connections_max} (postgres_connections_max)",
            "ALTER SYSTEM SET max_connections = …, or put a pooler in transaction mode before it",
        )  # fmt: skip
    if have("idle_in_transaction_session_timeout") == "0":
        yield note("postgres", "idle_in_transaction_session_timeout is 0",
                   "a program that hangs in a transaction can hold locks and stop the cleaning up of old rows",
                   f"ALTER ROLE {facts.role} SET idle_in_transaction_session_timeout = '60s'")  # fmt: skip
    idle_s = int(have("idle_session_timeout", 0)) / 1000
    if 0 < idle_s <= settings.lease_s:
        yield warning("postgres", f"idle_session_timeout is {idle_s:g} s",
                      "Postgres ends sessions of workers between their renewals, and those that agents keep open",
                      f"ALTER ROLE {facts.role} SET idle_session_timeout = 0")  # fmt: skip


def _schema(facts: PostgresFacts, settings: Settings) -> Iterator[Finding]:
    schema = settings.postgres_schema
    if facts.may_use is None or (facts.may_use and not facts.tables):
        yield error("postgres", f"there is no schema {schema!r} with tables", "nothing works", "statecache migrate")
        return
    if hidden_of(facts.tables):  # what is missing may only be hidden
        return
    known = {step.number for step in migrations(schema)}
    begun = bool(facts.applied) or set(facts.tables) == {"migration"}
    if facts.applied is None:
        yield note("postgres", "which migrations were applied cannot be seen", "",
                   f'GRANT SELECT ON "{schema}".migration TO {facts.role}')  # fmt: skip
    elif begun and (behind := sorted(known - set(facts.applied))):
        yield error("postgres", unapplied_text(behind),
                    "this release may find tables or columns missing", "statecache migrate")  # fmt: skip
    elif facts.lacking.parts:
        refused = "clients and workers are refused, or cannot tell what is there twice"
        costs = refused if facts.lacking.stops else "who looks for something by it reads the whole table"
        yield error("postgres", f"the schema is there in part: it lacks {facts.lacking.parts}", costs,
                    facts.lacking.remedy)  # fmt: skip
    elif newer := sorted(set(facts.applied) - known):
        yield note("postgres", f"a newer release has applied {', '.join(map(str, newer))}", "", "upgrade this one")
    if facts.cluster is not None:
        yield from _pin(facts.cluster, settings)
    what, remedy = facts.renamed
    if what:
        yield error("postgres", what, "clients and workers refuse it", remedy)


def _workers(facts: PostgresFacts) -> Iterator[Finding]:
    """Yield findings on shards without a live worker (a standby is to be mended first) and on hindered workers."""
    if facts.unowned and facts.unowned[0] and not facts.standby:
        none, count = facts.unowned
        yield error("postgres", f"{none} of {count} shards have no live worker",
                    "their changes do not get into Postgres: `postgres` durability is not reached, "
                    "and at backlog_entries_max commits are refused",
                    "statecache worker; where one runs, its log says what hinders it, and `statecache doctor --worker` "
                    "with its URLs which rights it lacks")  # fmt: skip
    for name, trouble, avoids in facts.hindered:
        yield error("postgres", f"worker {name} cannot serve: {trouble or 'it does not say why'}",
                    f"it leaves {avoids} shards to others" if avoids else "what it holds does not get into Postgres",
                    "remove the cause, point it at the primary, or stop it")  # fmt: skip


def _pin(cluster: Sequence[Any], settings: Settings) -> Iterator[Finding]:
    _, *found, code = cluster
    names = ("shards", "hash", "group rule", "prefix")
    ours = (settings.shards, HASH, GROUP_RULE, settings.prefix)
    what, remedy = pin_difference(dict(zip(names, found, strict=True)), dict(zip(names, ours, strict=True)))
    if what:
        yield error("both", f"Postgres is {what}", "clients and workers refuse it", remedy)
    if code > CODE:
        yield error("postgres", f"the schema asks for code level {code}, this program has {CODE}",
                    "clients and workers refuse it", "upgrade statecache")  # fmt: skip


def _rights(facts: PostgresFacts, *, worker: bool) -> Iterator[Finding]:
    if facts.may_use is False:
        yield error("postgres", f"the role {facts.role} may not use the schema", "nothing works",
                    f"GRANT USAGE ON SCHEMA … TO {facts.role}")  # fmt: skip
        return
    if facts.tables:
        yield from postgres_rights.findings(facts.role, facts.tables, facts.functions, worker=worker)
