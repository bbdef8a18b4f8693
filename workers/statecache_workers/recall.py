"""Postgres went back, as after a restore: what it had acknowledged, and holds no more, is made dirty again.

What the streams still hold is flushed again by itself. What has left them stands only in the states' hashes, clean and
free to be evicted. Before such a shard is opened all hashes of Redis are gone through once, a few thousand names a
turn, for all shards together that wait for it; then the states that lie beyond the row's watermark are dirty, and the
gap in the stream is repaired from them like any other. The same is done where a gap is met in which nothing is dirty:
where an epoch has begun since, Redis no longer knows that its watermark was higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statecache.errors import RedisUnavailable
from statecache_workers.holdings import Holding
from statecache_workers.logs import alarm, say

if TYPE_CHECKING:
    from statecache._async.connect import AsyncLink
    from statecache.keys import KeySpace
    from statecache_workers.streams import Streams

NAMES_PER_PAGE = 500
PAGES_PER_TURN = 8
_FIRST = b"0"


class Recall:
    """This goes through the states, and knows for which shards that has been done."""

    def __init__(self, keys: KeySpace, streams: Streams) -> None:
        self._keys = keys
        self._streams = streams
        self._stems = {keys.state_stem(shard): shard for shard in range(keys.shards)}
        self._cursor = _FIRST
        self._sought: dict[int, int] = {}
        """The watermarks of the shards that the pass under way is for."""
        self._done: dict[int, int] = {}
        self._recalled = 0

    async def through(self, link: AsyncLink, holdings: Sequence[Holding]) -> list[Holding]:
        """This goes on for these shards, and gives those for which everything has been gone through."""
        waiting = [one for one in holdings if not self.done(one)]
        if waiting:
            if not self._sought:
                self._cursor, self._recalled = _FIRST, 0
                self._sought = {one.shard: one.row.flushed for one in waiting}
            await self._go_on(link)
        return [one for one in holdings if self.done(one)]

    def seeks(self, holding: Holding) -> bool:
        """This says whether the pass under way is for the shard: some of its states may be dirty by now, not all."""
        return holding.shard in self._sought

    def done(self, holding: Holding) -> bool:
        """This says whether what lies beyond the shard's watermark has been gone through."""
        return self._done.get(holding.shard, holding.row.flushed + 1) <= holding.row.flushed

    def opened(self, shard: int) -> None:
        """This forgets that a shard was gone through: Postgres may go back once more."""
        self._done.pop(shard, None)

    def forget(self) -> None:
        """This forgets how far it came: the next server may order its keys in another way, or hold others."""
        self._sought.clear()
        self._done.clear()

    async def _go_on(self, link: AsyncLink) -> None:
        try:
            for _ in range(PAGES_PER_TURN):
                await self._page(link)
                if self._cursor == _FIRST:
                    break
            else:
                return
        except RedisUnavailable as error:
            if "NOPERM" not in error.detail:
                raise
            alarm("not_recalled", shards=sorted(self._sought), detail=error.detail)
        say("recalled", shards=sorted(self._sought), states=self._recalled)
        self._done |= self._sought
        self._sought = {}

    async def _page(self, link: AsyncLink) -> None:
        command = ("SCAN", self._cursor, "MATCH", self._keys.every_state(), "COUNT", NAMES_PER_PAGE)
        ((self._cursor, names),) = await self._streams.run(link, [command])
        found: dict[int, list[Any]] = {}
        for name in names:
            stem, colon, _ = name.partition(b":state:")
            shard = self._stems.get((stem + colon).decode("utf-8", "replace"))
            if shard in self._sought:
                found.setdefault(shard, []).append(name)
        calls: list[tuple[list[Any], list[Any]]] = [
            ([self._keys.unflushed(shard), *some], [self._sought[shard]]) for shard, some in found.items()
        ]
        replies = await self._streams.pipeline(link, "recall", calls)
        self._recalled += sum(reply for reply in replies if isinstance(reply, int))
