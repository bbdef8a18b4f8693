"""What row-level security refuses: rows that it would hide from the role, or from the schema's owner.

The schema's functions run as its owner, whom row-level security binds where it is forced: the right of whoever calls
them does not help. Postgres says the same of both, but for the function in which it happened.
"""

from __future__ import annotations

import psycopg

_FROM_ROLE = "Switch row-level security off for statecache's tables, or give this role BYPASSRLS."
_FROM_OWNER = (
    "Give the tables' owner BYPASSRLS, for the schema's functions run as it, or ALTER TABLE … NO FORCE ROW LEVEL "
    "SECURITY."
)


def is_hidden(error: psycopg.Error) -> bool:
    """Return whether Postgres refuses a query because row-level security would hide rows, in whatever language."""
    return error.diag.source_function == "check_enable_rls"


def is_hidden_from_owner(error: psycopg.Error) -> bool:
    """Return whether the rows would be hidden from the schema's owner, as which one of its functions ran."""
    return is_hidden(error) and bool(error.diag.context)


def remedy_of(error: psycopg.Error) -> str:
    """Return what is to be done where row-level security would hide rows; '' where it is something else."""
    if not is_hidden(error):
        return ""
    return _FROM_OWNER if is_hidden_from_owner(error) else _FROM_ROLE
