"""`statecache schemas`: what is stored in which version, so that an upgrade's end can be seen."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from statecache.cli.exits import OK
from statecache.cli.options import AsJson, PostgresUrl, settings_of
from statecache.cli.screen import print_json, print_table, size_text, time_text
from statecache.clock import wall
from statecache.keys import beyond_prefix
from statecache.schemas import Schema

if TYPE_CHECKING:
    from statecache.settings import Settings

_COLUMNS = ("namespace", "type", "version", "fields", "states", "bytes", "oldest", "newest")


class SchemaCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many live states of a namespace hold a value that was written as one schema.

    `type` and `version` are those of the value's class, `fields` a fingerprint of the names of its fields; where a
    value was written without a type, `type` is empty and `version` 0. `oldest` and `newest` are times of last changes.
    """

    namespace: str
    type: str
    version: int
    fields: str
    states: int
    bytes: int
    oldest: datetime
    newest: datetime


async def counted(settings: Settings, prefix: str) -> list[SchemaCount]:
    """Return the counts of what Postgres holds under a prefix."""
    from statecache.core.postgres.tier import PostgresTier
    from statecache.keys import KeySpace

    postgres = PostgresTier(settings, KeySpace(settings.prefix, settings.shards))
    try:
        asked = {"prefix": prefix, "beyond": beyond_prefix(prefix)}
        rows = await postgres.fetch("schemas", asked, seconds=settings.timeout_s)
    finally:
        await postgres.pool.close()
    found = []
    for namespace, schema, *counts in rows:
        names = dict(zip(("states", "bytes", "oldest", "newest"), counts, strict=True))
        kind = Schema.parse(schema)
        one = {"namespace": namespace, "type": kind.name, "version": kind.version, "fields": kind.fingerprint}
        found.append(SchemaCount(**one, **names))
    return sorted(found, key=lambda one: (one.namespace, one.type, one.version))


def schemas(
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only keys that begin so.")] = "",
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Count what Postgres holds in which version of its type.

    What an earlier version wrote is upgraded as it is read, and stored anew at the next write of its state: here is how
    much of it is left. The whole prefix is read for it; where that takes longer than the setting timeout_s, raise that.

    \b
    Examples:
      statecache schemas
      statecache schemas runs/ --json | jq '.schemas[] | select(.version < 2)'
    """
    found = asyncio.run(counted(settings_of(postgres_url=postgres_url), prefix))
    if as_json:
        print_json({"schemas": found})
        return OK
    if not found:
        print("Postgres holds no states" + (f" under {prefix}" if prefix else ""))
        return OK
    now = wall()
    rows = [
        (
            one.namespace, one.type, str(one.version), one.fields, f"{one.states:,}", size_text(one.bytes),
            time_text((now - one.oldest).total_seconds()), time_text((now - one.newest).total_seconds()),
        )
        for one in found
    ]  # fmt: skip
    print_table(_COLUMNS, rows)
    return OK
