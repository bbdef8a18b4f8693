"""Who has locked a table of the schema as a whole, by LOCK TABLE, CREATE INDEX, VACUUM FULL or ALTER TABLE.

Workers wait for such a lock, and so may whatever else asks this schema, `status` itself too. Who holds it is asked on a
connection that touches none of its tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg

from statecache.core.postgres.connection import connect
from statecache.core.postgres.transactions import asked
from statecache.errors import StateCacheError

if TYPE_CHECKING:
    from statecache.settings import Settings

PATIENCE_S = 1.0
"""How much longer than without it a look may take, in seconds."""


class TableLock(msgspec.Struct, frozen=True):
    """A session that keeps others from tables; `behind` is for whom it waits itself, and they behind it."""

    pid: int | None
    user: str | None
    application: str | None
    mode: str
    age_s: float | None
    tables: str
    behind: str | None

    @classmethod
    def of(cls, row: Sequence[Any]) -> TableLock:
        """Read a row of `table_locks`."""
        pid, user, application, mode, age_s, tables, behind = row
        return cls(pid, user, application, mode, None if age_s is None else float(age_s), tables, behind)

    @property
    def told(self) -> str:
        """Return in words who it is, and what to do."""
        if self.pid is None:
            return f"a prepared transaction has locked {self.tables} ({self.mode}): see pg_prepared_xacts"
        how = self.mode if self.age_s is None else f"{self.mode}, in a transaction of {self.age_s:.0f} s"
        who = f"pid {self.pid} ({self.user} with {self.application or 'no application_name'})"
        end = f"let it end, or: SELECT pg_terminate_backend({self.pid})"
        if self.behind is None:
            return f"{who} has locked {self.tables} ({how}), and others wait for it: {end}"
        return f"{who} waits to lock {self.tables} ({how}), and others behind it, for {self.behind}: {end}"


async def told_apart(settings: Settings) -> str:
    """Return in words what is asked on a connection of its own; '' where that does not answer either."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            async with await connect(settings, "statecache status", seconds=PATIENCE_S) as connection:
                schema = settings.postgres_schema
                rows = await asked(connection, schema, "table_locks", {"schema": schema}, seconds=PATIENCE_S)
                return "; ".join(TableLock.of(row).told for row in rows)
    except (psycopg.Error, StateCacheError, TimeoutError):
        return ""
