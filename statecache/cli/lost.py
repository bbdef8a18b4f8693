"""`statecache lost`: positions that were given to commits and that no tier holds, as far as anybody reported them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from statecache.cli.exits import OK
from statecache.cli.options import AsJson, PostgresUrl, settings_of
from statecache.cli.screen import print_json, print_table, time_text
from statecache.clock import wall

if TYPE_CHECKING:
    from statecache.settings import Settings

LISTED = 50
_COLUMNS = ("shard", "ended by epoch", "from", "to", "lost", "age", "cause", "opened by", "reported by", "keys")


class LostRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of positions of a shard that were lost: with an epoch, or in a gap that a flush met.

    The epoch `ended_by` began without them (cause `tail`), or met the gap. `positions` of the range were lost; `kept`
    of them have come back since, in conflict or quarantine, with the server that held them. `keys` are examples.
    In a gap a position counts that is not whole: where they are as many as the range has, each of it is one.
    """

    shard: int
    ended_by: int
    first_n: int
    last_n: int
    cause: str
    positions: int
    kept: int
    keys: list[str]
    opened_by: str | None
    opened_at: datetime | None
    reported_by: str
    reported_at: datetime

    @property
    def lost(self) -> int:
        """How many positions are held by no tier."""
        return max(0, self.positions - self.kept)


async def ranges(settings: Settings, most: int) -> list[LostRange]:
    """Return what is lost, the newest report first."""
    from statecache.core.postgres.tier import PostgresTier
    from statecache.keys import KeySpace

    postgres = PostgresTier(settings, KeySpace(settings.prefix, settings.shards))
    try:
        rows: Sequence[tuple[Any, ...]] = await postgres.fetch("lost_list", {"most": most}, seconds=settings.timeout_s)
    finally:
        await postgres.pool.close()
    names = LostRange.__struct_fields__
    return [LostRange(**dict(zip(names, row, strict=True))) for row in rows]


def lost(
    most: Annotated[int, typer.Option("--most", min=1, metavar="N", help="How many ranges to list.")] = LISTED,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """List what was acknowledged and is lost: positions that no tier holds, and that were issued again since.

    A Redis that comes back without its end takes the last commits along, unless their level says otherwise. How far
    they had come is reported by clients and workers that knew it. Of a gap, Postgres went back behind what Redis held,
    or entries were deleted from a stream: what is listed could not be rebuilt, or only in part.

    \b
    Examples:
      statecache lost
      statecache lost --json | jq '.lost[].keys'
    """
    settings = settings_of(postgres_url=postgres_url)
    found = asyncio.run(ranges(settings, most))
    if as_json:
        print_json({"lost": found})
        return OK
    if not found:
        print("nothing is known to be lost")
        return OK
    now = wall()
    rows = [
        (
            str(one.shard), str(one.ended_by) if one.cause == "tail" else "", str(one.first_n), str(one.last_n),
            str(one.lost), time_text((now - one.reported_at).total_seconds()), one.cause,
            one.opened_by or "", one.reported_by, ", ".join(one.keys),
        )
        for one in found
    ]  # fmt: skip
    print_table(_COLUMNS, rows)
    return OK
