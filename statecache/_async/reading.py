"""Reading one state from the primary, hydrating it on a miss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statecache._async.redis import refusal
from statecache.clock import monotonic
from statecache.errors import Unavailable
from statecache.model import Record
from statecache.records import FIELDS, record_of

if TYPE_CHECKING:
    from statecache._async.hydrate import Hydrator
    from statecache._async.redis import RedisTier
    from statecache.keys import KeySpace


class Reader:
    """This reads records from the Redis primary; what is not there is loaded from Postgres."""

    def __init__(self, keys: KeySpace, redis: RedisTier, hydrator: Hydrator) -> None:
        self._keys = keys
        self._redis = redis
        self._hydrator = hydrator

    async def record(self, key: str, *, end: float) -> Record:
        """This gives the key's record, which may be a tombstone or a known absence."""
        redis_key = self._keys.state(key)
        while True:
            seconds = end - monotonic()
            if seconds <= 0:
                raise Unavailable("timeout", detail=f"{key!r} could not be read in time")
            reply = (await self._redis.read([("HMGET", redis_key, *FIELDS)], seconds=seconds))[0]
            if isinstance(reply, Exception):
                raise refusal(reply, redis_key) from reply
            record = record_of(redis_key, key, reply)
            if record is None:
                record = (await self._hydrator.load([key], end=end)).get(key)
            if record is not None:
                return record
