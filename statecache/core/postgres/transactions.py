"""What every transaction in Postgres begins with: its isolation, then its limits, whatever the defaults are.

    READ COMMITTED      a statement that has waited for a lock must see what its holder did: by an older snapshot, two
                        would both be the first; and a standby refuses what is serializable
    row_security off    rows that a policy hides would count as not there: asked for them, Postgres raises an error
    the limits          `look_limits` and `read_limits` for a client, `local_limits` for what may write, `owner_limits`
                        for what migrates, `doctor_limits` for who looks at the defaults themselves

What the schema's owner does takes as long as it takes. That there is somebody to do it, its connection finds out first.

All are local to the transaction, so a transaction-mode pooler may stand in between. They go in one message with what
they are for, which Postgres takes for one transaction; where one takes several messages, `BEGIN` of `connection` says
the isolation. Other modules do not read the text of a statement, so that none is run without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from statecache.concurrency import TASKS, Concurrency
from statecache.concurrency.lateness import no_answer
from statecache.core.postgres.connection import brief, connect, limits
from statecache.errors import PostgresUnavailable
from statecache.settings import Settings, masked
from statecache.sql import statement


def beginning(limits: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of statements, with what a transaction of theirs begins with before them."""
    return ("read_committed", limits, *names)


def message(limits: str, names: Sequence[str], schema: str) -> str:
    """Return the text of statements that are one transaction."""
    return ";\n".join(statement(name, schema) for name in beginning(limits, names))


async def connect_as_owner(
    settings: Settings, name: str, *, io: Concurrency = TASKS
) -> psycopg.AsyncConnection[Any]:  # fmt: skip
    """Return a new connection under that application_name, over which a first answer came within `timeout_s`.

    A pooler that is paused, or that has no server, lets everybody in, and answers nothing. Raises ConfigurationError or
    PostgresUnavailable.
    """
    connection = await connect(settings, name, io=io)
    limit, is_heard = io.timeout(settings.timeout_s, connection), False
    text = message("owner_limits", [], settings.postgres_schema)
    try:
        async with limit:
            await io.rows(connection, io.spelled(connection, text, {}), None)
        is_heard = True
    except psycopg.Error as error:
        told = no_answer(settings.timeout_s, limit.late_s) if limit.expired else brief(error)
        reason = "timeout" if limit.expired else "connection"
        raise PostgresUnavailable(reason, detail=f"{masked(settings.postgres_url)}: {told}") from error
    finally:
        if not is_heard:
            await connection.close()
    return connection


async def asked(
    connection: Any, schema: str, name: str, parameters: Mapping[str, Any], *, seconds: float | None,
    io: Concurrency = TASKS,
) -> list[tuple[Any, ...]]:  # fmt: skip
    """Run a statement that is a transaction of its own, of so many seconds, and return its rows.

    With None for `seconds` it is the schema's owner's, and takes as long as it takes. Errors are psycopg's.
    """
    how, bounds = ("owner_limits", {}) if seconds is None else ("local_limits", limits(seconds))
    text = message(how, [name], schema)
    *_, rows = await io.rows(connection, io.spelled(connection, text, {**parameters, **bounds}), None)
    return rows
