"""What is read before its turn has come, so that the turn need not ask: heads, and entries behind what is flushed.

    a glance     where a few shards woke the worker: their heads and first entries, in one exchange
    a survey     where many were written to in the batch before: all heads, and the first entries of those that have any
    read ahead   where a batch did not take all that the heads told of: the next one, while that one is written

Heads always come before entries. What was read is used only if it is still what comes next and nothing is special
about it, and of a survey only if it is all that the heads tell of: otherwise the entries are read by the heads. How
much to read before the heads have told is decided by how large a shard's entries used to be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from statecache.clock import monotonic
from statecache.concurrency import TASKS
from statecache.errors import RedisUnavailable
from statecache_workers.logs import whisper
from statecache_workers.owned_shards import Head, Heads, Holding, agree, shares, turn_after
from statecache_workers.pace import Pace
from statecache_workers.slices import Slice
from statecache_workers.streams import Streams, Wanted

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.settings import Settings
    from statecache_workers.sizing import BatchSize
    from statecache_workers.stream_places import StreamPlace
    from statecache_workers.values_ahead import ValuesAhead

GLANCE_SHARDS_MAX = 4
UNREAD_PART = 4
"""What part of a batch is read where nothing was read ahead: Postgres waits for it, and the rest is read beside it."""
ENTRIES_MAX = 8
"""How many entries of a shard are read before its head has told how many there are."""
_BYTES_PART = 4
"""What may be read at most of all shards together, as a part of a batch's bytes."""


class ReadAhead(NamedTuple):
    """A batch that was read before its turn; with heads but no slices, only the heads are known.

    `more` says that the heads told of more than was to be read.
    """

    heads: Heads
    slices: list[Slice]
    more: bool = False


def usual_bytes(holding: Holding) -> int:
    """Return the mean size of the shard's flushed entries, in bytes."""
    return max(1, holding.row.bytes // max(1, holding.row.entries))


def glance_entries(holding: Holding, settings: Settings) -> int:
    """Return how many entries to read of one of a few shards."""
    most = min(ENTRIES_MAX, settings.flush_batch_max)
    return max(1, min(most, settings.flush_bytes_max // GLANCE_SHARDS_MAX // usual_bytes(holding)))


def entries_of_each(holdings: Collection[Holding], settings: Settings) -> int:
    """Return how many entries to read of each of many shards; 0 where even one of each may be too much."""
    largest = max((usual_bytes(holding) for holding in holdings), default=1)
    of_bytes = settings.flush_bytes_max // _BYTES_PART // largest
    return min(ENTRIES_MAX, min(of_bytes, settings.flush_batch_max) // max(1, len(holdings)))


def pending(heads: Heads, holdings: Mapping[int, Holding]) -> int:
    """Return how many entries the heads tell of that are not flushed."""
    rows = {shard: holding.row.flushed for shard, holding in holdings.items()}
    return sum(max(0, head.n - rows[shard]) for shard, head in heads.of.items() if isinstance(head, Head))


def whole(heads: Heads, slices: list[Slice], holdings: Mapping[int, Holding]) -> ReadAhead:
    """Keep the entries only where they are all that the heads tell of, and every head agrees with its row."""
    ends = {one.shard: one.end.n for one in slices}
    for shard, holding in holdings.items():
        head = heads.of.get(shard)
        if holding.phase == "open" and not (
            isinstance(head, Head)
            and agree(holding.row, head, heads.server)
            and ends.get(shard, holding.place.n) >= head.n
        ):
            return ReadAhead(heads, [])
    return ReadAhead(heads, slices)


def still_next(ahead: ReadAhead, holdings: Mapping[int, Holding]) -> list[Slice]:
    """Return what was read ahead if it is what comes next and nothing is special about it, else nothing."""
    for one in ahead.slices:
        holding = holdings.get(one.shard)
        if holding is not one.holding or holding.phase != "open" or holding.place != one.start or not one.plain:
            return []
    return ahead.slices


class Lookout:
    """The look before every cycle, with what was read ahead for it."""

    def __init__(self, settings: Settings, streams: Streams, size: BatchSize, values: ValuesAhead) -> None:
        self._settings = settings
        self._streams = streams
        self._size = size
        self._values = values
        self._first = 0
        self.pace = Pace()
        self.ahead: ReadAhead | None = None

    def taken(self) -> ReadAhead | None:
        """Return what was read ahead, once."""
        ahead, self.ahead = self.ahead, None
        return ahead

    async def look(self, link: Link, holdings: Mapping[int, Holding], woken: Sequence[int]) -> Heads:
        """Return the heads of the shards, and perhaps read ahead.

        Where a few shards were woken, the heads are theirs alone, and their first entries come along. Where the batch
        before was a large one, all heads come with the first entries of each shard.
        """
        if self.ahead is not None and self.ahead.heads.of.keys() >= holdings.keys():
            return self.ahead.heads
        self.ahead = None
        if self.pace.many(monotonic()):
            return await self._look_for_many(link, holdings, woken)
        asked = [holdings[shard] for shard in woken if shard in holdings]
        if not 0 < len(asked) <= GLANCE_SHARDS_MAX or any(one.phase == "new" for one in holdings.values()):
            return await self._streams.heads(link, list(holdings))
        wanted = [(one, glance_entries(one, self._settings)) for one in asked]
        heads, slices = await self._streams.glance(link, wanted)
        if slices and all(agree(one.holding.row, one.head, heads.server) for one in slices):
            self.ahead = ReadAhead(heads, slices)
        return heads

    async def _look_for_many(self, link: Link, holdings: Mapping[int, Holding], woken: Sequence[int]) -> Heads:
        """Look at all shards, after a pause where few of the writers that the last batch served have come back."""
        heads = None if woken else await self._survey(link, holdings)
        pause_s = self.pace.pause(len(woken) if heads is None else pending(heads, holdings), monotonic())
        if heads is None or pause_s:
            await TASKS.sleep(pause_s)
            heads = await self._survey(link, holdings)
        return heads

    async def _survey(self, link: Link, holdings: Mapping[int, Holding]) -> Heads:
        """Return the heads of all shards, and read the first entries of each in the same exchange."""
        most = entries_of_each(holdings.values(), self._settings)
        if not most:
            return await self._streams.heads(link, list(holdings))
        heads, slices = await self._streams.survey(link, list(holdings.values()), most)
        self.ahead = whole(heads, slices, holdings)
        return heads

    async def read_behind(
        self,
        link: Link,
        holdings: Mapping[int, Holding],
        slices: Sequence[Slice],
        *,
        latest: Collection[str],
        written: asyncio.Event,
    ) -> ReadAhead | None:
        """Read what comes behind the slices that are written, if there are any, and see meanwhile how it will be kept.

        `latest` are the namespaces of whose history only the latest values are kept. What goes wrong meanwhile does not
        touch the batch: the next turn reads again, and meets it.
        """
        if not slices or self._settings.fence == "off":
            return None  # without a fence heads count that were read behind the last acknowledgement
        behind = {one.shard: one.end for one in slices}
        able: dict[int, tuple[Holding, Head, StreamPlace]] = {}
        try:
            heads = await self._streams.heads(link, list(holdings))
            for shard, holding in holdings.items():
                head = heads.of[shard]
                if holding.phase == "open" and isinstance(head, Head) and agree(holding.row, head, heads.server):
                    able[shard] = holding, head, behind.get(shard, holding.place)
            wanted, more = self.share_out(able)
            if not wanted:
                return None
            ahead = ReadAhead(heads, await self._streams.read(link, wanted), more)
        except RedisUnavailable as error:
            whisper("not_read_ahead", detail=str(error))
            return None
        await self._values.make(ahead.slices, latest, written)
        return ahead

    def share_out(
        self, able: dict[int, tuple[Holding, Head, StreamPlace]], woken: Collection[int] = (), part: int = 1
    ) -> tuple[list[Wanted], bool]:
        """Decide how many entries to read of which shard, of a part of a batch, and whether there are more."""
        pending = {
            shard: (max(1, head.n - place.n), max(0, head.bytes - place.bytes))
            for shard, (_, head, place) in able.items()
            if head.n > place.n or shard in woken
        }
        counts = shares(pending, max(1, self._size.entries // part), max(1, self._size.bytes // part), self._first)
        if counts:
            self._first = turn_after(pending, counts, self._first)
        more = sum(counts.values()) < sum(entries for entries, _ in pending.values())
        return [Wanted(*able[shard], count) for shard, count in counts.items()], more
