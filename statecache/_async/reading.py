"""Reading one state: from this process, from the primary, or from the primary proven to be the current lineage.

    local     the near cache where it may be believed; else the tracked connection, which fills it; else the primary
    primary   one round trip; a state that is not in Redis is hydrated
    fenced    the shard is open on the server that answers, and Postgres, asked afterwards, says that its epoch is the
              current one: at the moment of the read nobody else was the primary

Whatever way it comes, a state that is older than one that this process has seen is not given: it is read again, and
where that brings nothing newer, it is believed only when the newer one is proven to be gone: the shard is in a later
epoch (it was lost with its Redis), or Postgres knows the server as the current lineage (it was set aside).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from statecache._async.redis import found_at, refusal
from statecache._bridge import AsyncSignal, async_sleep
from statecache.clock import monotonic
from statecache.errors import ConfigurationError, ForeignData, PostgresUnavailable, RedisUnavailable, Unavailable
from statecache.records import FIELDS, record_of

if TYPE_CHECKING:
    from statecache._async.hydrate import Hydrator
    from statecache._async.line import Line
    from statecache._async.opener import Opener
    from statecache._async.postgres import PostgresTier
    from statecache._async.redis import RedisTier
    from statecache.keys import KeySpace
    from statecache.model import Record
    from statecache.near import Near, Reading
    from statecache.settings import Settings

_PAUSE_S = 0.01


class Reader:
    """This reads records; what is not in Redis is loaded from Postgres."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        redis: RedisTier,
        postgres: PostgresTier,
        *,
        near: Near,
        line: Line,
        hydrator: Hydrator,
        opener: Opener,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._near = near
        self._line = line
        self._hydrator = hydrator
        self._opener = opener

    async def record(self, key: str, *, end: float, least: int = 0) -> Record:
        """This gives the key's record on the primary, which may be a tombstone or a known absence.

        `least` is a version that it must have reached; a state is never older than what was seen before.
        """
        pause = 0.0
        while True:
            record = await self._primary(key, end)
            if self._near.seen(key, (record.epoch, record.version)):
                if record.version >= least:
                    return record
            elif pause:
                record = await self.proven(key, end=end)
                if record.version >= least:
                    return record
            if monotonic() + pause > end:
                raise Unavailable("version", detail=f"{key!r} has not reached version {least}")
            await async_sleep(pause)
            pause = min(max(pause * 2, _PAUSE_S), 0.25)

    async def _primary(self, key: str, end: float) -> Record:
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

    async def local(self, key: str, *, end: float, least: int = 0) -> Record:
        """This gives the record over the tracked connection, so that it is here the next time; else the primary's."""
        if not (self._near.keeps and self._line.is_up()):
            return await self.record(key, end=end, least=least)
        reading, mine = self._near.reserve(key, AsyncSignal())
        patience = min(max(end - monotonic(), 0.001), self._settings.near_window_s / 2)
        try:
            if mine:
                await self._line.ask(reading, seconds=patience)
            answered = await self._line.answered(reading, patience)
        except RedisUnavailable:
            answered = False
        record = self._brought(reading) if answered else None
        if record is not None and record.version >= least and self._near.seen(key, (record.epoch, record.version)):
            return record
        return await self.record(key, end=end, least=least)

    def _brought(self, reading: Reading) -> Record | None:
        """This gives what a read brought; None where it is to be made on the primary, hydration included."""
        if isinstance(reading.error, ForeignData):
            raise reading.error
        return reading.record

    async def fenced(self, key: str, *, end: float, least: int = 0) -> Record:
        """This gives the record of what Postgres says is the current lineage; Unavailable where it cannot be had."""
        if self._settings.fence != "on":
            raise ConfigurationError("a fenced read needs the fence", hint="Set fence=on, or read the primary.")
        pause = _PAUSE_S
        while True:
            record, epoch, replid = await self._proven(key, end)
            seconds = max(end - monotonic(), 0.001)
            rows = await self._postgres.fetch("shards", {"shards": [self._keys.shard(key)]}, seconds=seconds)
            current = bool(rows) and tuple(rows[0][1:3]) == (epoch, replid)
            if current and self._believed(record, epoch) and record.version >= least:
                return record
            if monotonic() + pause > end:
                if current:
                    raise Unavailable("version", detail=f"{key!r} has not reached version {least}")
                raise Unavailable("epoch", detail=f"the Redis that answers, in epoch {epoch}, is not the current one")
            if not current:
                await self._redis.pool.drop_idle()
            await async_sleep(pause)
            pause = min(pause * 2, 0.25)

    async def proven(self, key: str, *, end: float) -> Record:
        """This gives the record if it is not older than what was seen, or what was seen is proven to be gone.

        It is where the shard is open in a later epoch, or Postgres says that this server is the current lineage: then
        what was seen was set aside as a conflict.
        """
        pause = _PAUSE_S
        while True:
            record, epoch, replid = await self._proven(key, end)
            if self._believed(record, epoch):
                return record
            if await self._is_current(key, epoch, replid, end):
                self._near.lowered(key, (record.epoch, record.version))
                return record
            if monotonic() + pause > end:
                detail = f"Redis holds an older state of {key!r} than this process has seen, in the same epoch"
                raise Unavailable("epoch", detail=detail)
            await self._redis.pool.drop_idle()
            await async_sleep(pause)
            pause = min(pause * 2, 0.25)

    async def _is_current(self, key: str, epoch: int, replid: str, end: float) -> bool:
        """This says whether Postgres knows that server as the current lineage of the key's shard."""
        asked, seconds = {"shards": [self._keys.shard(key)]}, max((end - monotonic()) / 2, 0.001)
        try:
            rows = await self._postgres.fetch("shards", asked, seconds=seconds)
        except PostgresUnavailable:
            return False
        return bool(rows) and tuple(rows[0][1:3]) == (epoch, replid)

    def _believed(self, record: Record, epoch: int) -> bool:
        """This says whether a state of a shard that is open in that epoch may be given."""
        place = (record.epoch, record.version)
        if self._near.seen(record.key, place):
            return True
        later = epoch > self._near.epoch_of(record.key)
        if later:
            self._near.lowered(record.key, place)
        return later

    async def _proven(self, key: str, end: float) -> tuple[Record, int, str]:
        """This reads a state on a server on which its shard is open, and gives the shard's epoch and server too."""
        shard, redis_key = self._keys.place(key)
        asked = [self._keys.meta(shard), redis_key]
        while True:
            seconds = end - monotonic()
            if seconds <= 0:
                raise Unavailable("timeout", detail=f"{key!r} could not be read in time")
            try:
                verdict, *rest = await self._redis.script(
                    "prove", asked, [self._settings.fence, *FIELDS], seconds=seconds
                )
            except ResponseError as error:
                raise refusal(error, redis_key) from error
            if verdict == b"FOREIGN":
                raise found_at(rest[0].decode("utf-8", "replace"), rest[1].decode("utf-8", "replace"))
            if verdict == b"FENCED":
                await self._opener.open(shard, end=end)
                continue
            fields: Any = rest[2]
            record = record_of(redis_key, key, fields)
            if record is not None:
                return record, int(rest[0]), rest[1].decode()
            await self._hydrator.load([key], end=end)
