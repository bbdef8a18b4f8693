"""Telling Redis what Postgres has committed: watermarks, forward only and in their epoch, and forks to be removed.

The watermark moves with a shard's last call: whoever dies before that leaves forks that the next owner finds between
Redis' copy of it and the row's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statecache_workers.owned_shards import set_apart

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache_workers.owned_shards import Holding
    from statecache_workers.streams import Streams

FORKS_PER_ACK = 500


class Acknowledgement:
    """The acknowledgements to one Redis: watermarks, and forks to be removed."""

    def __init__(self, keys: KeySpace, streams: Streams) -> None:
        self._keys = keys
        self._streams = streams

    async def tell(self, link: Link, holdings: Sequence[Holding], forks: dict[int, list[tuple[str, str]]]) -> list[int]:
        """Tell Redis the rows' watermarks, and return the shards that would not have it.

        The watermark moves with a shard's last call: if it gets that far, the states of all its forks are removed.
        """
        calls: list[tuple[list[str], list[Any]]] = []
        order: list[Holding] = []
        for holding in holdings:
            row, forked = holding.row, forks.get(holding.shard, [])
            numbers = (row.flushed, row.entries, row.bytes, row.excepted)
            last = max(0, len(forked) - 1) // FORKS_PER_ACK * FORKS_PER_ACK
            calls += self._removals(holding, forked[:last])
            calls.append(self._call(holding, forked[last:], numbers))
            order += [holding] * (1 + last // FORKS_PER_ACK)
        unsure = []
        for holding, reply in zip(order, await self._streams.pipeline(link, "ack", calls), strict=True):
            if isinstance(reply, Exception):
                set_apart(holding, "foreign_data", f"{self._keys.meta(holding.shard)}: {reply}")
            elif reply != 1:
                holding.doubt()
                unsure.append(holding.shard)
        return unsure

    async def remove(self, link: Link, holding: Holding, forked: Sequence[tuple[str, str]]) -> None:
        """Remove the states of forks, and leave the watermark where it is."""
        await self._streams.pipeline(link, "ack", self._removals(holding, forked))

    def _removals(self, holding: Holding, forked: Sequence[tuple[str, str]]) -> list[tuple[list[str], list[Any]]]:
        pages = (forked[start : start + FORKS_PER_ACK] for start in range(0, len(forked), FORKS_PER_ACK))
        return [self._call(holding, page, (0, 0, 0, 0)) for page in pages]

    def _call(
        self, holding: Holding, forked: Sequence[tuple[str, str]], numbers: Sequence[int]
    ) -> tuple[list[str], list[Any]]:
        keys, shard = self._keys, holding.shard
        states = [keys.state(key) for key, _ in forked]
        names = [keys.meta(shard), keys.events(shard), *states]
        return names, [holding.row.epoch, holding.row.replid, *numbers, *(change_id for _, change_id in forked)]
