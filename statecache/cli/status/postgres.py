"""What `status` asks a Postgres, and what it is, or is set to, that it must not be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from statecache.cli.schema_check import MIGRATE, lack_of, unapplied, unapplied_text
from statecache.clock import monotonic
from statecache.errors import ConfigurationError, PostgresUnavailable

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier
    from statecache.settings import Settings

COUNTED_MAX = 1000
"""How far what is set aside is counted."""


async def ask(tier: PostgresTier, settings: Settings, *, seconds: float) -> dict[str, Any]:
    """Ask a Postgres how things stand, and whether its schema is there as a whole."""
    end = monotonic() + seconds
    rows = await tier.fetch("overview", {"most": COUNTED_MAX + 1}, seconds=seconds)
    asked = {"schema": settings.postgres_schema}
    missing = await tier.fetch("schema_missing", asked, seconds=max(end - monotonic(), 0.001))
    missing += await tier.fetch("rows_missing", {}, seconds=max(end - monotonic(), 0.001))
    applied = await _applied(tier, seconds=max(end - monotonic(), 0.001))
    if applied == []:
        missing.append(("the rows of migration",))
    found: dict[str, Any] = rows[0][0]
    return found | {"missing": missing, "applied": applied}


async def _applied(tier: PostgresTier, *, seconds: float) -> list[int] | None:
    """Return which migrations were applied; None where this role may not see that."""
    try:
        return [number for (number,) in await tier.fetch("migrate_seen", {}, seconds=seconds)]
    except (ConfigurationError, PostgresUnavailable):
        return None


def unfit(answer: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield what a Postgres is, or is set to, that it must not be."""
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
