"""Loading many states at once: from Postgres into Redis what is not there, and from Redis into this process.

One by one each would cost its round trips. Here many are asked for in one exchange, and what Redis lacks is hydrated a
shard at a time, in one query. Where nothing can be kept in this process, Redis is warm at least. What belongs to a
shard whose gate is closed is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from statecache.clock import boottime, monotonic
from statecache.core.parts import in_parts
from statecache.errors import RedisUnavailable
from statecache.redis_errors import refusal

if TYPE_CHECKING:
    from statecache.core.read.hydration import Hydrator
    from statecache.core.redis.tier import RedisTier
    from statecache.core.redis.tracking import TrackedConnection
    from statecache.keys import KeySpace
    from statecache.near import Near, Reading

_ASKED_AT_ONCE = 500
_HYDRATED_AT_ONCE = 200


class Warmer:
    """The loading of many states."""

    def __init__(
        self, keys: KeySpace, redis: RedisTier, *, near: Near, tracked: TrackedConnection, hydrator: Hydrator
    ) -> None:
        self._keys = keys
        self._redis = redis
        self._near = near
        self._tracked = tracked
        self._hydrator = hydrator

    async def warm(self, keys: Sequence[str], *, seconds: float) -> int:
        """Load the keys and return how many states are kept here now, absences apart.

        `seconds` bounds each exchange with a server.
        """
        missing: dict[int, list[str]] = {}
        for some in in_parts(keys, _ASKED_AT_ONCE):
            for key in await self._missing(some, seconds):
                missing.setdefault(self._keys.shard(key), []).append(key)
        for of_shard in missing.values():
            for some in in_parts(of_shard, _HYDRATED_AT_ONCE):
                await self._hydrator.load(some, end=monotonic() + seconds)
        kept = 0
        for some in in_parts(keys, _ASKED_AT_ONCE):
            kept += await self._kept(some, seconds)
        return kept

    async def _missing(self, keys: Sequence[str], seconds: float) -> list[str]:
        replies = await self._redis.read([("EXISTS", self._keys.state(key)) for key in keys], seconds=seconds)
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, Exception):
                raise refusal(reply, self._keys.state(key)) from reply
        return [key for key, reply in zip(keys, replies, strict=True) if not reply]

    async def _kept(self, keys: Sequence[str], seconds: float) -> int:
        """Read keys over the tracked connection, where there is one, and return how many states it brought."""
        if not (self._near.keeps and await self._tracked.comes_up(seconds)):
            return 0
        readings: list[Reading] = []
        mine: list[Reading] = []
        for key in keys:
            reading, is_mine = self._near.reserve(key, self._redis.io.signal(), boottime())
            readings.append(reading)
            if is_mine:
                mine.append(reading)
        end = monotonic() + seconds
        with suppress(RedisUnavailable):
            await self._tracked.ask(*mine, seconds=seconds)
        brought = 0
        for reading in readings:
            if await reading.signal.wait(max(end - monotonic(), 0.0)) and (record := reading.record) is not None:
                brought += self._near.seen(record.key, (record.epoch, record.version)) and record.exists
        return brought
