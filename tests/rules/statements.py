"""Statements of Postgres are run where transactions begin, and nowhere else: there none goes without its limits."""

from __future__ import annotations

from tests.rules import house_rules

BEGINNERS = (
    "statecache/core/postgres/transactions.py",
    "statecache/core/postgres/connection.py",
    "statecache/core/postgres/tier.py",
    "statecache/core/postgres/migrate.py",
    "statecache/core/epoch/rescue.py",
    "workers/statecache_workers/database.py",
    "statecache/testing/emptied_schemas.py",
)
"""Modules that begin a transaction, or run within one that is begun, by its isolation and its limits."""


def begun(path: str, text: str) -> list[str]:
    """Find readers of the text of statements beside those: `transactions.asked` runs one by its name."""
    if path in BEGINNERS:
        return []
    read = [line for name, line in house_rules.imports(path, text) if name == "statecache.sql.statement"]
    return [f"{path}:{line}: `transactions.asked` runs a statement with its isolation and its limits" for line in read]
