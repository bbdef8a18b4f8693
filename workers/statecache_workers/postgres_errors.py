"""Errors of Postgres, which come out in two kinds.

`Poison` (classes 22, 23, 54 and P0) blames the data, which goes into quarantine: Postgres' own word, that of a
constraint, or of a trigger that somebody has added. Everything else, PostgresUnavailable, blames the circumstances:
disk full, read only, shut down, deadlock, rights, a lost connection. It is waited out. Some of it may be met with some
changes only, as a damaged page is: what `blames_server` is met with all.
"""

from __future__ import annotations

import re

import psycopg
from psycopg import errors as pg

from statecache.errors import PostgresUnavailable

_POISON = ("22", "23", "54", "P0")
"""Classes of SQLSTATE: data exceptions, constraints, limits of the program, what a function raises by itself."""
HELD = "55P03"
"""Why Postgres refuses what waits for a lock for too long, as for a row that an idle transaction holds."""
_OF_SERVER = ("08", "25", "28", "3D", "53", "57")
"""Classes of what has nothing to do with the rows that are written: connections, resources, operators."""


class Poison(Exception):
    """Raised where Postgres refuses the data itself."""

    def __init__(self, sqlstate: str, reason: str) -> None:
        super().__init__(f"{sqlstate}: {reason}")
        self.sqlstate = sqlstate
        self.reason = reason


def translated(error: psycopg.Error, where: str, *, of_data: bool) -> Poison | PostgresUnavailable:
    """Return an error as one of the data (Poison), where there are any, or of the circumstances; none shows a value."""
    state = error.sqlstate or ""
    reason = error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__
    if of_data and (state.startswith(_POISON) or (not state and isinstance(error, pg.DataError))):
        return Poison(state or "22000", reason)
    return PostgresUnavailable(state or "connection", detail=f"{where}: {reason}")


def blames_server(error: PostgresUnavailable) -> bool:
    """Return whether the reason is none of what a statement says of certain rows."""
    return not re.fullmatch(r"[0-9A-Z]{5}", error.reason) or error.reason.startswith(_OF_SERVER)
