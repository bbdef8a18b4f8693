"""Entries of other programs in our streams.

A commit moves meta and stream at once, so an entry beyond the newest position that meta knows is nobody's commit.
Added with the usual `*`, its id is the time in milliseconds, far above any epoch, and no commit can be added behind it:
the shard takes no writes. Such entries are parked raw and taken out, and the shard goes on.

In quarantine they stand at negative n: -1 - n, apart from the shard's own numbering.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from statecache.entries import salvaged
from statecache.errors import RedisUnavailable
from statecache.model import Position
from statecache_workers.database import Database, Poison
from statecache_workers.holdings import Holding, set_apart
from statecache_workers.logs import alarm
from statecache_workers.quarantine import UNREADABLE, park_raw

if TYPE_CHECKING:
    from statecache._async.connect import AsyncLink
    from statecache.keys import KeySpace
    from statecache_workers.streams import Streams

STRAYS_PER_ROUND = 1000


def place_of(entry_id: bytes) -> Position:
    """This reads any stream id, however large its numbers."""
    epoch, _, n = entry_id.partition(b"-")
    return Position(int(epoch), int(n))


async def find_strays(
    link: AsyncLink, streams: Streams, keys: KeySpace, shard: int, *, most: int = STRAYS_PER_ROUND
) -> Sequence[tuple[bytes, Sequence[bytes]]]:
    """This gives the entries of a shard that no commit wrote, oldest first."""
    (reply,) = await streams.pipeline(link, "strays", [([keys.meta(shard), keys.changes(shard)], [most])])
    return () if isinstance(reply, Exception) else reply


async def expel(link: AsyncLink, database: Database, streams: Streams, keys: KeySpace, holding: Holding) -> int:
    """This parks what no commit wrote, takes it out of the stream, and gives how many entries were parked."""
    shard = holding.shard
    strays = await find_strays(link, streams, keys, shard)
    if not strays:
        holding.doubt()
        return 0
    async with database.transaction() as transaction:
        for entry_id, fields in strays:
            place = place_of(entry_id)
            about = (*salvaged(fields), Poison(UNREADABLE, "no commit wrote it"))
            await park_raw(transaction, shard, Position(place.epoch, max(-1 - place.n, -(2**63))), fields, about)
        await transaction.commit()
    fixed = [keys.meta(shard), keys.changes(shard)]
    try:
        await streams.pipeline(link, "expel", [(fixed, [entry_id for entry_id, _ in strays])])
    except RedisUnavailable as error:
        if error.reason != "refused":
            raise
        set_apart(holding, "foreign_data", f"{keys.changes(shard)}: {error.detail}")
    else:
        alarm("expelled", shard=shard, entries=len(strays))
    return len(strays)
