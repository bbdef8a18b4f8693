"""A gap in a stream, or a Postgres that went back: states that were flushed once, and are held no more, become dirty.

An epoch that began because Postgres went back has the watermark that Postgres says, and what the streams still hold
beyond it is flushed again. What has left them stands only in the states' hashes, clean and free to be evicted. So where
a gap is met, all hashes of Redis are gone through once, a few thousand names a turn, for all shards together: whatever
lies beyond its shard's watermark is dirty then, and the gap is repaired from it. That is so of every state at any time
but then, so it does no harm to go through more shards than need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statecache.errors import RedisUnavailable
from statecache_workers.logs import alarm, say
from statecache_workers.owned_shards import Holding

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache_workers.streams import Streams

NAMES_PER_PAGE = 500
PAGES_PER_TURN = 8
_FIRST = b"0"


class Recall:
    """The pass through all states of Redis, and the shards for which that was done in their present epoch."""

    def __init__(self, keys: KeySpace, streams: Streams) -> None:
        self._keys = keys
        self._streams = streams
        self._stems = {keys.state_stem(shard): shard for shard in range(keys.shards)}
        self._cursor = _FIRST
        self._sought: dict[int, int] = {}
        """The epochs of the shards that the pass under way is for."""
        self._done: dict[int, int] = {}
        self._recalled = 0

    def done(self, holding: Holding) -> bool:
        """Return whether all of the shard's states that Postgres does not hold are known to be dirty."""
        return self._done.get(holding.shard) == holding.row.epoch

    async def go_on(self, link: Link, holdings: Sequence[Holding]) -> None:
        """Go on with the pass under way, or begin one for these shards, which are open."""
        if not self._sought:
            self._cursor, self._recalled = _FIRST, 0
            self._sought = {one.shard: one.row.epoch for one in holdings}
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

    def forget(self) -> None:
        """Forget how far it came: the next server may order its keys in another way, or hold others."""
        self._sought.clear()
        self._done.clear()

    async def _page(self, link: Link) -> None:
        command = ("SCAN", self._cursor, "MATCH", self._keys.every_state(), "COUNT", NAMES_PER_PAGE)
        ((self._cursor, names),) = await self._streams.run(link, [command])
        found: dict[int, list[Any]] = {}
        for name in names:
            stem, colon, _ = name.partition(b":state:")
            shard = self._stems.get((stem + colon).decode("utf-8", "replace"))
            if shard in self._sought:
                found.setdefault(shard, []).append(name)
        calls: list[tuple[list[Any], list[Any]]] = [
            ([self._keys.meta(shard), self._keys.unflushed(shard), *some], []) for shard, some in found.items()
        ]
        replies = await self._streams.pipeline(link, "recall", calls)
        self._recalled += sum(reply for reply in replies if isinstance(reply, int))
