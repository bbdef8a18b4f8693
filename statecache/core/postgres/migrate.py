"""Migrations: numbered SQL files, each in a transaction of its own, one process at a time.

Every transaction takes the schema's advisory lock first and looks anew, as of then, at what is left to do, so two that
migrate at once are safe, and one that dies leaves whole steps behind. Nothing is kept on the connection between
transactions, so a transaction-mode pooler may stand in between.

A step that changes a table waits for all who read it, and whoever writes waits behind the step. So it waits for less
time than writers do, and is tried again as a whole, for a minute: they have their turn in the pauses.

The pin (shard count, hash, group rule, prefix) is written in the transaction of the first step and compared ever
after, before anything is changed. A schema whose `min_code` is above ours is refused; later steps of a newer release
that still lets our code in are left alone, which is what a rolling upgrade looks like from the older side.

A Redis that answers is compared before anything is made: one that is pinned to another prefix or schema, or belongs to
another cluster, must not leave a schema behind that is pinned to this one.

At the end a fresh Redis is adopted: a client never may, for it might have been pointed at the wrong one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg import errors as pg
from redis.exceptions import ResponseError

from statecache.clock import monotonic
from statecache.concurrency import TASKS, Concurrency
from statecache.core.epoch.gate import Gate
from statecache.core.postgres.connection import brief
from statecache.core.postgres.row_security import remedy_of
from statecache.core.postgres.tier import PostgresTier
from statecache.core.postgres.transactions import asked, beginning, connect_as_owner
from statecache.core.redis.rights import ADOPTING, commands, rights
from statecache.core.redis.tier import RedisTier
from statecache.errors import ConfigurationError, PostgresUnavailable, RedisUnavailable
from statecache.keys import GROUP_RULE, HASH, KeySpace
from statecache.rules.replids import UNFENCED, adopt_options
from statecache.settings import masked
from statecache.sql import CODE, Migration, migrations, statement

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.settings import Settings


_PATIENCE_S, _PAUSE_S = 60.0, 1.0
"""For how long a step is tried again whose locks others hold, and the pause in between, in seconds."""
_OWNER = "Migrate as the schema's owner, or as a role that may create one in this database."


class MigrationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration did: steps, the pin, rows for shards, shards opened on a fresh Redis.

    `newer` are the numbers of steps that a newer release has applied and that this code does not know.
    """

    applied: tuple[str, ...] = ()
    newer: tuple[int, ...] = ()
    pinned: bool = False
    shards_added: int = 0
    shards_opened: int = 0

    @property
    def did_something(self) -> bool:
        """Whether anything was changed."""
        return bool(self.applied or self.pinned or self.shards_added or self.shards_opened)


async def migrate(settings: Settings, *, redis: bool = True, io: Concurrency = TASKS) -> MigrationReport:
    """Bring the schema up to date, pin the cluster, and adopt a fresh Redis unless `redis` is false.

    Raises ConfigurationError where schema, settings and Redis do not belong together, and Unavailable.
    """
    keys = KeySpace(settings.prefix, settings.shards)
    tier = RedisTier(settings, keys, io=io)
    postgres = PostgresTier(settings, keys, cluster=lambda: tier.cluster, io=io)
    connection = await _connection(settings, io)
    server = ""
    try:
        schema = _Schema(settings, connection, io)
        if await schema.is_pinned():
            await _compare(postgres)
        if redis:
            server = await _look_at(tier, keys, settings.connect_timeout_s)
        if tier.cluster not in ("", postgres.cluster):
            raise _another_cluster(settings, tier.cluster, postgres.cluster, server=server)
        await schema.begin()
        report = await schema.bring_up_to_date()
    finally:
        await connection.close()
    if not redis:
        await _compare(postgres)
        return report
    return msgspec.structs.replace(report, shards_opened=await _adopt(settings, keys, tier, postgres))


class _Schema:
    """The database's schema, to which missing steps are applied, each in a transaction of its own."""

    def __init__(self, settings: Settings, connection: psycopg.AsyncConnection[Any], io: Concurrency) -> None:
        self._settings = settings
        self._schema = settings.postgres_schema
        self._connection = connection
        self._io = io

    async def is_pinned(self) -> bool:
        """Return whether there is a pin to compare with."""
        try:
            pinned = await asked(self._connection, self._schema, "migrate_pinned", {}, seconds=None, io=self._io)
            return bool(pinned[0][0])
        except psycopg.Error as error:
            raise self._translated(error, "the schema") from error

    async def begin(self) -> None:
        """Make the schema, and the table of the applied steps."""
        try:
            async with self._transaction():
                await self._run("migrate_begin")
        except psycopg.Error as error:
            raise self._translated(error, "the schema") from error

    async def bring_up_to_date(self) -> MigrationReport:
        """Apply the missing steps in order, and return what was done."""
        applied: list[str] = []
        pinned, added = False, 0
        known = {step.number: step for step in migrations(self._schema)}
        until = monotonic() + _PATIENCE_S
        while True:
            step: Migration | None = None
            try:
                async with self._transaction():
                    seen = {row[0] for row in await self._run("migrate_seen")}
                    step = next((step for number, step in known.items() if number not in seen), None)
                    if step is not None:
                        await self._connection.execute(step.text.encode())
                        await self._run("migrate_note", number=step.number, name=step.name)
                    pinned = bool(await self._run("migrate_pin", **self._pin())) or pinned
                    added += len(await self._run("migrate_shards"))
            except psycopg.Error as error:
                if isinstance(error, pg.LockNotAvailable) and monotonic() < until:
                    await self._io.sleep(_PAUSE_S)
                    continue
                raise self._translated(error, f"migration {step.number}" if step else "the schema") from error
            if step is None:
                newer = tuple(sorted(seen - known.keys()))
                return MigrationReport(applied=tuple(applied), newer=newer, pinned=pinned, shards_added=added)
            applied.append(f"{step.number:04d}_{step.name}")
            until = monotonic() + _PATIENCE_S

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """Begin a transaction that nobody else's migration runs beside."""
        async with self._connection.transaction():
            for name in (*beginning("owner_limits"), "migrate_lock"):
                await self._run(name)
            yield

    def _pin(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "shards": settings.shards,
            "hash": HASH,
            "group_rule": GROUP_RULE,
            "prefix": settings.prefix,
            "min_code": CODE,
        }

    async def _run(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        cursor = await self._connection.execute(statement(name, self._schema).encode(), parameters or None)
        return await cursor.fetchall() if cursor.description else []

    def _translated(self, error: psycopg.Error, what: str) -> Exception:
        where = f"{masked(self._settings.postgres_url)}, schema {self._schema}"
        if isinstance(error, pg.LockNotAvailable):
            return PostgresUnavailable("migration", detail=f"{where}: others held the locks of {what} for a minute")
        if isinstance(error, psycopg.OperationalError):
            return PostgresUnavailable("connection", detail=f"{where}: {brief(error)}")
        hint = ""
        if isinstance(error, pg.InsufficientPrivilege):
            hint = remedy_of(error) or _OWNER
        elif isinstance(error, (pg.DuplicateTable, pg.DuplicateObject, pg.DuplicateFunction)):
            hint = (
                "Something else lives in this schema: choose another with STATECACHE_POSTGRES_SCHEMA. Or a backup was "
                "restored in part: restore it again, all of it, into an empty database."
            )
        return ConfigurationError(f"{where} refuses {what}: {brief(error)}", hint=hint)


async def _connection(settings: Settings, io: Concurrency) -> psycopg.AsyncConnection[Any]:
    """Connect to a database; raise ConfigurationError where its encoding cannot hold every key and value."""
    connection = await connect_as_owner(settings, "statecache migrate", io=io)
    encoding = connection.info.parameter_status("server_encoding")
    if encoding == "UTF8":
        return connection
    await connection.close()
    raise ConfigurationError(
        f"{masked(settings.postgres_url)}: the encoding of this database is {encoding}",
        hint="Use another: CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'.",
    )


async def _look_at(tier: RedisTier, keys: KeySpace, seconds: float) -> str:
    """Compare the pin of a Redis that answers, and return its replid; one that is away is asked again at the end.

    One that lacks a command by which it is adopted is refused before anything is done.
    """
    with suppress(RedisUnavailable):
        link = await tier.link()
        try:
            with suppress(ResponseError):  # a server that does not tell
                found = await rights(link, commands(keys, ADOPTING, [0]), seconds=seconds)
                if found.unknown:
                    raise await tier.hindered(link, found, ADOPTING, seconds=seconds)
            return await replid_of(link, seconds)
        finally:
            await link.close()
    return ""


async def replid_of(link: Link, seconds: float) -> str:
    """Return the name of a server's data set, as the fence knows it."""
    (info,) = await link.run([("INFO", "replication")], seconds=seconds)
    found = re.search(rb"master_replid:(\w+)", info) if isinstance(info, bytes) else None
    return found[1].decode() if found else UNFENCED


def _another_cluster(settings: Settings, of_redis: str, of_postgres: str, *, server: str) -> ConfigurationError:
    where = f"{masked(settings.postgres_url)}, schema {settings.postgres_schema}"
    return ConfigurationError(
        f"Redis belongs to cluster {of_redis}, {where}, to {of_postgres or 'none yet'}",
        hint="Name the Postgres of this Redis, or another Redis. Where that Postgres is lost for good, and this one is "
        "empty: `statecache migrate --no-redis`, then "
        f"`statecache epoch adopt all {adopt_options([server], server)}`; workers go on by themselves, start "
        "those that ended.",
    )


async def _compare(postgres: PostgresTier) -> None:
    session = await postgres.session()
    await session.close()


async def _adopt(settings: Settings, keys: KeySpace, tier: RedisTier, postgres: PostgresTier) -> int:
    """Open the shards of a Redis without a data set of ours, or with the one that Postgres knows; return how many."""
    link = await tier.link()
    try:
        session = await postgres.session()
        try:
            gate = Gate(settings, keys, by="migrate", authority="setup")
            return len(await gate.open(link, session.connection, range(keys.shards)))
        finally:
            await session.close()
    finally:
        await link.close()
