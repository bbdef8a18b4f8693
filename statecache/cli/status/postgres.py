"""What `status` asks a Postgres, and what it is, or is set to, that it must not be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from statecache.cli.schema_check import MIGRATE, lack_of, unapplied, unapplied_text
from statecache.cli.status.table_locks import TableLock, told_apart
from statecache.cli.vector_troubles import vector_troubles
from statecache.clock import monotonic
from statecache.errors import ConfigurationError, PostgresUnavailable

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier
    from statecache.settings import Settings

COUNTED_MAX = 1000
"""How far what is set aside is counted."""


async def ask(tier: PostgresTier, settings: Settings, *, seconds: float) -> dict[str, Any]:
    """Ask a Postgres how things stand, and whether its schema is there as a whole.

    Where it does not answer in time, the error names who has locked a table as a whole.
    """
    try:
        return await _ask(tier, settings, seconds=seconds)
    except PostgresUnavailable as error:
        told = await told_apart(settings) if _is_late(error) else ""
        if not told:
            raise
        raise PostgresUnavailable(error.reason, detail=f"{error.detail}: {told}", hint=error.hint) from error


def _is_late(error: PostgresUnavailable) -> bool:
    """Return whether a lock may be why there was no answer: a new connection asks the table `cluster` at once."""
    return error.reason in ("timeout", "connection") or (error.reason == "connect" and "no answer" in error.detail)


async def _ask(tier: PostgresTier, settings: Settings, *, seconds: float) -> dict[str, Any]:
    end = monotonic() + seconds
    rows = await tier.fetch("overview", {"most": COUNTED_MAX + 1}, seconds=seconds)
    found: dict[str, Any] = rows[0][0]
    asked = {"schema": settings.postgres_schema}
    locks: list[Any] = []
    if any(owner is None for *_, owner in found["shards"]) or any(trouble for *_, trouble in found["workers"]):
        locks = await tier.fetch("table_locks", asked, seconds=max(end - monotonic(), 0.001))
    missing = await tier.fetch("schema_missing", asked, seconds=max(end - monotonic(), 0.001))
    missing += await tier.fetch("rows_missing", {}, seconds=max(end - monotonic(), 0.001))
    applied = await _applied(tier, seconds=max(end - monotonic(), 0.001))
    if applied == []:
        missing.append(("the rows of migration",))
    vectors: list[Any] | None = None
    if not missing:
        vectors = await _shown(tier, "vector_troubles", seconds=max(end - monotonic(), 0.001))
    return found | {
        "missing": missing, "applied": applied, "locks": [TableLock.of(row) for row in locks], "vectors": vectors or [],
    }  # fmt: skip


async def _applied(tier: PostgresTier, *, seconds: float) -> list[int] | None:
    """Return which migrations were applied; None where this role may not see that."""
    rows = await _shown(tier, "migrate_seen", seconds=seconds)
    return None if rows is None else [number for (number,) in rows]


async def _shown(tier: PostgresTier, name: str, *, seconds: float) -> list[Any] | None:
    """Return the rows of a statement; None where this role may not see them."""
    try:
        return await tier.fetch(name, {}, seconds=seconds)
    except (ConfigurationError, PostgresUnavailable):
        return None


def unfit(answer: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield what a Postgres is, or is set to, that it must not be, and what its indexes of vectors cannot take in."""
    lack = lack_of(answer["missing"], pinned=True, rows=len(answer["shards"]), shards=settings.shards)
    if behind := unapplied(answer["applied"]):
        yield f"{unapplied_text(behind)}: {MIGRATE}"
    elif lack.parts:
        unseen = f"{MIGRATE}, for which migrations were applied cannot be seen; where that makes nothing, "
        yield (
            f"the schema is there in part, it lacks {lack.parts}: "
            f"{unseen if answer['applied'] is None else ''}{lack.remedy}"
        )
    if answer["read_only"]:
        yield (
            "Postgres' transactions are read only by default, so agents can open no gate: "
            "set default_transaction_read_only = off"
        )
    if answer["encoding"] != "UTF8":
        yield (
            f"the database's encoding is {answer['encoding']}: move to one made with TEMPLATE template0 ENCODING 'UTF8'"
        )
    for trouble in vector_troubles(answer["vectors"]):
        yield f"{trouble.what}; {trouble.costs}: {trouble.remedy}"
