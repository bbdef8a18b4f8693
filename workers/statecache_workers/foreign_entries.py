"""Entries of other programs in our streams.

A commit moves meta and stream at once, so an entry beyond the newest position that meta knows is nobody's commit.
Added with the usual `*`, its id is the time in milliseconds, far above any epoch, and no commit can be added behind it:
the shard takes no writes. Such entries are parked raw and taken out, and the shard goes on. It goes on as well where
whoever added one has deleted it before: the stream still ends with its id, which nothing else tells, so the ends of
shards without commits are looked at now and then.

So is what a commit wrote that was refused in its middle, and was reported as not applied: entry, and whatever of its
states it came to write, which are loaded from Postgres again.

In quarantine they stand at negative n: -1 - n, apart from the shard's own numbering, and under no change_id, for
whoever repeats the change may still apply it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from statecache.entries import ForeignEntry, NewerFormat, change_set, salvaged
from statecache.errors import RedisUnavailable
from statecache.model import ChangeSet, Position
from statecache_workers.batch_writing import Raw
from statecache_workers.database import Database
from statecache_workers.logs import alarm
from statecache_workers.owned_shards import Head, Heads, Holding, misplaced, set_apart
from statecache_workers.postgres_errors import Poison
from statecache_workers.quarantine import UNREADABLE, park_raw, tell_parked
from statecache_workers.stream_places import place_of

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache_workers.streams import Streams

ENTRIES_PER_PAGE = 1000
BYTES_PER_PAGE = 8 * 2**20
PAGES_PER_TURN = 10
_LOOK_S = 5.0
"""How often the ends of streams are looked at, in seconds."""
_NOBODYS = Poison(UNREADABLE, "no commit wrote it")
_REFUSED = Poison(UNREADABLE, "a commit wrote it that was refused before its end")


class Found(NamedTuple):
    """Entries that no commit wrote, in order, and the id of the last, which may be all that is left of them."""

    entries: Sequence[tuple[bytes, Sequence[bytes]]] = ()
    last: bytes = b""


async def find_foreign_entries(
    link: Link, streams: Streams, keys: KeySpace, shard: int, *, most: int = ENTRIES_PER_PAGE
) -> Found:
    """Return the oldest entries of a shard that no commit wrote; `last` is empty where there are none."""
    asked = [([keys.meta(shard), keys.changes(shard)], [most, BYTES_PER_PAGE])]
    (reply,) = await streams.pipeline(link, "foreign_entries", asked)
    return Found() if isinstance(reply, Exception) else Found(*reply)


class StreamEnds:
    """The ends of the streams of one worker's shards, which are looked at now and then."""

    def __init__(self, streams: Streams, keys: KeySpace, *, monotonic: Callable[[], float]) -> None:
        self._streams = streams
        self._keys = keys
        self._monotonic = monotonic
        self._next_look = 0.0
        self._seen: dict[int, int] = {}

    async def beyond(self, link: Link, holdings: Mapping[int, Holding], heads: Heads) -> list[int]:
        """Return the open shards without commits since the last look whose stream goes on beyond the newest one."""
        now = self._monotonic()
        if now < self._next_look:
            return []
        self._next_look = now + _LOOK_S
        opened = [shard for shard, one in holdings.items() if one.phase == "open"]
        before, self._seen = (
            self._seen,
            {shard: head.n for shard in opened if isinstance(head := heads.of.get(shard), Head)},
        )
        idle = [shard for shard, n in self._seen.items() if before.get(shard) == n]
        asked = [([self._keys.meta(shard), self._keys.changes(shard)], [1, 1]) for shard in idle]
        replies = await self._streams.pipeline(link, "foreign_entries", asked)
        return [shard for shard, reply in zip(idle, replies, strict=True) if isinstance(reply, list) and reply[1]]


async def expel(link: Link, database: Database, streams: Streams, keys: KeySpace, holding: Holding) -> int:
    """Park what no commit wrote, page by page, take it out of the stream, and return how many entries that were.

    Where there is more of it than a turn has time for, the next turn goes on: the stream still shows it.
    """
    expelled, left = 0, 1
    for _ in range(PAGES_PER_TURN):
        found = await find_foreign_entries(link, streams, keys, holding.shard)
        if not found.last:
            break
        removed, left = await _expel_page(link, database, streams, keys, holding, found)
        if not found.entries and holding.phase == "open":
            alarm("expelled", shard=holding.shard, entries=0, last_id=found.last.decode())
        expelled += removed
        if not left or not removed:
            break
    if expelled:
        alarm("expelled", shard=holding.shard, entries=expelled)
    elif holding.phase == "open":
        holding.doubt()
    return expelled


async def _expel_page(
    link: Link,
    database: Database,
    streams: Streams,
    keys: KeySpace,
    holding: Holding,
    found: Found,
) -> tuple[int, int]:
    """Park some and take them out; return how many went and whether there are more."""
    shard = holding.shard
    refused = [_change_set(*entry) for entry in found.entries]
    raws = [
        Raw(_aside(entry_id), fields, "", salvaged(fields)[1], _NOBODYS if one is None else _REFUSED)
        for (entry_id, fields), one in zip(found.entries, refused, strict=True)
    ]
    try:
        if raws:
            async with database.transaction(of_data=True) as transaction:
                await park_raw(transaction, shard, raws)
                await transaction.commit()
            tell_parked(shard, raws)
        states = [
            (change.key, change.change_id)
            for one in refused
            for change in (one.changes if one is not None else ())
            if not misplaced(change.key, shard, keys)
        ]
        names = [keys.meta(shard), keys.changes(shard), keys.unflushed(shard), *(keys.state(key) for key, _ in states)]
        arguments = [found.last, *(part for state in states for part in state)]
        (reply,) = await streams.pipeline(link, "expel", [(names, arguments)])
    except Poison as error:
        set_apart(holding, "not_quarantined", f"{keys.changes(shard)}: {error}")
        return 0, 0
    except RedisUnavailable as error:
        if error.reason != "refused":
            raise
        set_apart(holding, "foreign_data", f"{keys.changes(shard)}: {error.detail}")
        return 0, 0
    if isinstance(reply, Exception):
        set_apart(holding, "foreign_data", f"{keys.changes(shard)}: {reply}")
        return 0, 0
    return int(reply[0]), int(reply[1])


def _change_set(entry_id: bytes, fields: Sequence[bytes]) -> ChangeSet | None:
    """Return what a commit has written, or None for another program's entry."""
    try:
        return change_set(entry_id, fields)
    except (ForeignEntry, NewerFormat):
        return None


def _aside(entry_id: bytes) -> Position:
    place = place_of(entry_id)
    return Position(place.epoch, max(-1 - place.n, -(2**63)))
