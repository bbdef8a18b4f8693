"""Making and dropping indexes of vectors, as the schema's owner; workers keep them, and searches use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
from psycopg import errors as pg

from statecache.core.postgres.connection import brief, connect
from statecache.errors import ConfigurationError, PostgresUnavailable, UsageError
from statecache.keys import checked_namespace
from statecache.rules.vectors import DIMS_MAX, checked_member
from statecache.settings import Settings, masked
from statecache.sql import statement

_UNAVAILABLE = (pg.UndefinedFile, pg.FeatureNotSupported, pg.InvalidParameterValue)


class VectorIndex(msgspec.Struct, frozen=True, kw_only=True):
    """An index of a namespace's vectors, and how many states wait to be taken in."""

    namespace: str
    member: str
    dims: int
    ready: bool
    table: str
    waiting: int


async def indexes(settings: Settings) -> list[VectorIndex]:
    """Return the indexes that there are, by namespace."""
    async with _owner(settings) as run:
        names = VectorIndex.__struct_fields__
        return [VectorIndex(**dict(zip(names, row, strict=True))) for row in await run("vector_list")]


async def create(settings: Settings, namespace: str, *, member: str, dims: int) -> int:
    """Have a namespace's vectors indexed from now on, and return how many states there are already.

    Raises UsageError where they are, ConfigurationError where Postgres has no pgvector or refuses, and Unavailable.
    """
    checked_namespace(namespace), checked_member(member)
    if not 0 < dims <= DIMS_MAX:
        raise UsageError(f"dims={dims} is not a number of dimensions from 1 to {DIMS_MAX:,}")
    async with _owner(settings) as run:
        await run("vector_extension")
        await run("vector_create", namespace=namespace, member=member, dims=dims)
        return int((await run("vector_fill", namespace=namespace))[0][0])


async def drop(settings: Settings, namespace: str) -> bool:
    """Let the index of a namespace's vectors go, and return whether there was one; states keep their vectors."""
    async with _owner(settings) as run:
        return bool((await run("vector_drop", namespace=checked_namespace(namespace)))[0][0])


@asynccontextmanager
async def _owner(settings: Settings) -> AsyncIterator[Any]:
    """Connect, and yield what runs a statement in a transaction of its own."""
    connection = await connect(settings, "statecache vectors")

    async def run(name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        return await _rows(settings, connection, name, parameters)

    try:
        yield run
    finally:
        await connection.close()


async def _rows(
    settings: Settings, connection: psycopg.AsyncConnection[Any], name: str, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    where = f"{masked(settings.postgres_url)}, schema {settings.postgres_schema}"
    try:
        async with connection.transaction():
            cursor = await connection.execute(statement(name, settings.postgres_schema).encode(), parameters or None)
            return await cursor.fetchall() if cursor.description else []
    except pg.UniqueViolation:
        if name == "vector_extension":  # somebody else has made it meanwhile
            return []
        hint = "`statecache vectors drop` lets that index go first; the states keep their vectors."
        raise UsageError(f"the vectors of {parameters['namespace']!r} are indexed already", hint=hint) from None
    except pg.LockNotAvailable as error:
        raise PostgresUnavailable("busy", detail=f"{where}: others held the table of states for 5 s") from error
    except psycopg.OperationalError as error:
        raise PostgresUnavailable("connection", detail=f"{where}: {brief(error)}") from error
    except psycopg.Error as error:
        raise ConfigurationError(f"{where}: {brief(error)}", hint=_hint(name, error)) from error


def _hint(name: str, error: psycopg.Error) -> str:
    if isinstance(error, pg.InsufficientPrivilege):
        extension = "As a superuser, in this database: CREATE EXTENSION vector. Then repeat this."
        return extension if name == "vector_extension" else "Do this as the schema's owner, the role that migrates."
    if name == "vector_extension" and isinstance(error, _UNAVAILABLE):
        return "This server has no pgvector: install it there (postgresql-17-pgvector and its like)."
    if isinstance(error, (pg.UndefinedTable, pg.UndefinedFunction)):
        return "The schema is of an earlier release: run `statecache migrate`."
    return ""
