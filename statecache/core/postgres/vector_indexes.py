"""Making and dropping indexes of vectors, as the schema's owner; workers keep them, and searches use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import psycopg
from psycopg import errors as pg

from statecache.concurrency import TASKS
from statecache.core.postgres.connection import brief
from statecache.core.postgres.row_security import remedy_of
from statecache.core.postgres.tier import refuse_misfit
from statecache.core.postgres.transactions import asked, connect_as_owner
from statecache.errors import ConfigurationError, PostgresUnavailable, UsageError
from statecache.keys import KeySpace, checked_namespace
from statecache.rules.vectors import DIMS_MAX, checked_member
from statecache.settings import Settings, masked

_TIMES, _PAUSE_S = 20, 0.25
"""How often the table of states is asked for, and the pause in between, in seconds."""
_UNAVAILABLE = (pg.UndefinedFile, pg.FeatureNotSupported, pg.InvalidParameterValue)


class VectorIndex(msgspec.Struct, frozen=True, kw_only=True):
    """An index of a namespace's vectors: how many states wait, how many it has refused, and why those that wait do."""

    namespace: str
    member: str
    dims: int
    ready: bool
    table: str
    waiting: int
    refused: int
    trouble: str = ""
    """What is in the way of those that wait, by SQLSTATE and in Postgres' words."""


async def indexes(settings: Settings) -> list[VectorIndex]:
    """Return the indexes that there are, by namespace."""
    async with _owner(settings) as run:
        names = VectorIndex.__struct_fields__
        return [VectorIndex(**dict(zip(names, row, strict=True))) for row in await run("vector_list")]


async def create(settings: Settings, namespace: str, *, member: str, dims: int) -> int:
    """Have a namespace's vectors indexed from now on, and return how many states there are already.

    What was cut off before is gone on with. Raises UsageError where they are indexed, ConfigurationError where Postgres
    has no pgvector or refuses, and Unavailable.
    """
    checked_namespace(namespace), checked_member(member)
    if not 0 < dims <= DIMS_MAX:
        raise UsageError(f"dims={dims} is not a number of dimensions from 1 to {DIMS_MAX:,}")
    async with _owner(settings) as run:
        await run("vector_extension")
        try:
            await run("vector_create", namespace=namespace, member=member, dims=dims)
        except UsageError:
            if (namespace, member, dims, False) not in [row[:4] for row in await run("vector_list")]:
                raise
        if not await _watched(run, namespace, watched=True):
            await run("vector_drop", namespace=namespace)
            raise PostgresUnavailable("busy", detail="others hold the table of states; nothing was made")
        return int((await run("vector_fill", namespace=namespace))[0][0])


async def drop(settings: Settings, namespace: str) -> bool:
    """Let the index of a namespace's vectors go, and return whether there was one; states keep their vectors."""
    async with _owner(settings) as run:
        there = bool((await run("vector_drop", namespace=checked_namespace(namespace)))[0][0])
        await _watched(run, namespace, watched=False)  # where that cannot be done, it does nothing any more
        return there


async def _watched(run: Any, namespace: str, *, watched: bool) -> bool:
    """Have a namespace's states watched, or no more, and return whether that was done; flushes are hardly held up."""
    for _ in range(_TIMES):
        if (await run("vector_watch", namespace=namespace, watched=watched))[0][0]:
            return True
        await TASKS.sleep(_PAUSE_S)
    return False


@asynccontextmanager
async def _owner(settings: Settings) -> AsyncIterator[Any]:
    """Connect, compare the schema with the settings, and yield what runs a statement in a transaction of its own."""
    connection = await connect_as_owner(settings, "statecache vectors")

    async def run(name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        return await _rows(settings, connection, name, parameters)

    try:
        for row in await run("cluster"):
            refuse_misfit(row, settings.postgres_schema, KeySpace(settings.prefix, settings.shards))
        yield run
    finally:
        await connection.close()


async def _rows(
    settings: Settings, connection: psycopg.AsyncConnection[Any], name: str, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    where = f"{masked(settings.postgres_url)}, schema {settings.postgres_schema}"
    try:
        return await asked(connection, settings.postgres_schema, name, parameters, seconds=None)
    except pg.UniqueViolation:
        if name == "vector_extension":  # somebody else has made it meanwhile
            return []
        hint = "`statecache vectors drop` lets that index go first; the states keep their vectors."
        raise UsageError(f"the vectors of {parameters['namespace']!r} are indexed already", hint=hint) from None
    except psycopg.OperationalError as error:
        raise PostgresUnavailable("connection", detail=f"{where}: {brief(error)}") from error
    except psycopg.Error as error:
        unused = await _unused(settings, connection) if isinstance(error, pg.InsufficientPrivilege) else ""
        raise ConfigurationError(f"{where}: {brief(error)}", hint=unused or _hint(name, error)) from error


async def _unused(settings: Settings, connection: psycopg.AsyncConnection[Any]) -> str:
    """Return what lets the schema's owner use pgvector's schema, where that is what it lacks; else ''."""
    with suppress(psycopg.Error):  # who may not even ask is another role
        for extension, role in await asked(connection, settings.postgres_schema, "vector_schema", {}, seconds=None):
            return f"As a superuser, in this database: GRANT USAGE ON SCHEMA {extension} TO {role}. Then repeat this."
    return ""


def _hint(name: str, error: psycopg.Error) -> str:
    if remedy := remedy_of(error):
        return remedy
    if isinstance(error, pg.InsufficientPrivilege):
        extension = "As a superuser, in this database: CREATE EXTENSION vector. Then repeat this."
        return extension if name == "vector_extension" else "Do this as the schema's owner, the role that migrates."
    if name == "vector_extension" and isinstance(error, _UNAVAILABLE):
        return "This server has no pgvector: install it there (postgresql-17-pgvector and its like)."
    if isinstance(error, (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedFunction, pg.InvalidSchemaName)):
        return "Run `statecache migrate`: the schema is not there, or of an earlier release."
    return ""
