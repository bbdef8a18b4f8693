"""Listing by prefix: what Postgres holds, overlaid with what is dirty in Redis.

The dirty keys are read first and Postgres after them, so a key that is flushed in between is seen at least once; of
two sights of one key the higher version counts. A listing is not a snapshot: it shows each key as of some moment
between the call and the end of the iteration.

What Postgres holds of a state whose newest change is in quarantine is only that there is such a change. Redis is asked
for such a state, and may hold it for a while; once it does not, the record says `quarantined`, as a reader would see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from statecache._async.redis import refusal
from statecache.errors import ForeignData
from statecache.keys import checked_prefix_of_list
from statecache.model import Record
from statecache.records import FIELDS, record_of, record_of_row

if TYPE_CHECKING:
    from statecache._async.postgres import PostgresTier
    from statecache._async.redis import RedisTier
    from statecache.keys import KeySpace

_PAGE = 500
_KEYS_PER_READ = 200

Order = Literal["key", "newest"]


class Sight(msgspec.Struct, frozen=True):
    """This is a record as a listing saw it; `parked` says that its change is in quarantine."""

    record: Record
    parked: bool = False

    @property
    def is_listed(self) -> bool:
        """This says whether there is a state, or was one that only quarantine holds."""
        return self.record.exists or self.record.op == "quarantined"


class Listing:
    """This lists the records of live states under a prefix, and of those that only quarantine holds."""

    def __init__(self, keys: KeySpace, redis: RedisTier, postgres: PostgresTier) -> None:
        self._keys = keys
        self._redis = redis
        self._postgres = postgres

    async def records(self, prefix: str, *, order: Order, limit: int | None, seconds: float) -> AsyncIterator[Record]:
        """This gives the records in the asked order; `seconds` bounds each exchange with a server."""
        async for sight in self.sights(prefix, order=order, limit=limit, seconds=seconds):
            yield sight.record

    async def sights(self, prefix: str, *, order: Order, limit: int | None, seconds: float) -> AsyncIterator[Sight]:
        """This gives the same, and of each whether it is in quarantine."""
        prefix, shard = checked_prefix_of_list(prefix, self._keys.shards)
        dirty = await self._dirty(prefix, range(self._keys.shards) if shard is None else [shard], seconds)
        given = 0
        pages = self._by_key(prefix, dirty, seconds) if order == "key" else self._newest(prefix, dirty, limit, seconds)
        async for sight in pages:
            if limit is not None and given >= limit:
                return
            if sight.is_listed:
                given += 1
                yield sight

    async def _dirty(self, prefix: str, shards: range | list[int], seconds: float) -> dict[str, Record]:
        """This reads the states under the prefix that Postgres may not have yet, tombstones too."""
        commands = [("ZRANGE", self._keys.unflushed(shard), 0, -1) for shard in shards]
        replies = await self._redis.read(commands, seconds=seconds)
        found: list[str] = []
        for shard, reply in zip(shards, replies, strict=True):
            found += _keys_in(reply, self._keys.unflushed(shard), prefix.encode())
        return await self._held(found, seconds)

    async def _held(self, keys: Sequence[str], seconds: float) -> dict[str, Record]:
        """This reads what Redis holds of the keys."""
        held: dict[str, Record] = {}
        for at in range(0, len(keys), _KEYS_PER_READ):
            some = keys[at : at + _KEYS_PER_READ]
            reads = [("HMGET", self._keys.state(key), *FIELDS) for key in some]
            for key, reply in zip(some, await self._redis.read(reads, seconds=seconds), strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, self._keys.state(key)) from reply
                record = record_of(self._keys.state(key), key, reply)
                if record is not None:
                    held[key] = record
        return held

    async def _overlaid(
        self, rows: Sequence[Sequence[Any]], dirty: dict[str, Record], seconds: float
    ) -> dict[str, Sight]:
        """This overlays rows with what is dirty, and those of quarantined changes with what Redis holds of them."""
        found: dict[str, Record] = {}
        for row in rows:
            record, _ = record_of_row(row)
            found[record.key] = _newer(record, dirty.get(record.key, record))
        parked = [key for key, record in found.items() if record.op == "quarantined"]
        held = await self._held(parked, seconds)
        sights = {key: Sight(record) for key, record in found.items()}
        for key in parked:
            newest = _newer(held.get(key, found[key]), found[key])
            sights[key] = Sight(newest, parked=newest.change_id == found[key].change_id)
        return sights

    async def _by_key(self, prefix: str, dirty: dict[str, Record], seconds: float) -> AsyncIterator[Sight]:
        """This merges two sequences in byte order of their keys."""
        waiting = sorted(dirty, key=str.encode, reverse=True)
        after, more = "", True
        while more:
            parameters = {"prefix": prefix, "beyond": _beyond(prefix), "after": after, "limit": _PAGE}
            rows = await self._postgres.fetch("list_by_key", parameters, seconds=seconds)
            more = len(rows) == _PAGE
            for after, sight in (await self._overlaid(rows, dirty, seconds)).items():
                while waiting and waiting[-1].encode() < after.encode():
                    yield Sight(dirty[waiting.pop()])
                if waiting and waiting[-1] == after:
                    waiting.pop()
                yield sight
        while waiting:
            yield Sight(dirty[waiting.pop()])

    async def _newest(
        self, prefix: str, dirty: dict[str, Record], limit: int | None, seconds: float
    ) -> AsyncIterator[Sight]:
        """This asks for more where the limit is not reached, for what is in quarantine may turn out to be deleted."""
        wanted = None if limit is None else limit + len(dirty)
        while True:
            parameters = {"prefix": prefix, "beyond": _beyond(prefix), "limit": wanted}
            rows = await self._postgres.fetch("list_newest", parameters, seconds=seconds)
            sights = await self._overlaid(rows, dirty, seconds)
            if limit is None or wanted is None or len(rows) < wanted:
                break
            if sum(sight.is_listed for sight in sights.values()) >= limit:
                break
            wanted *= 2
        found = {key: Sight(record) for key, record in dirty.items()} | sights
        for sight in sorted(found.values(), key=lambda one: (one.record.updated_at, one.record.key), reverse=True):
            yield sight


def _keys_in(reply: Any, redis_key: str, start: bytes) -> list[str]:
    """This reads the dirty keys of one shard that start so."""
    if isinstance(reply, Exception):
        raise refusal(reply, redis_key) from reply
    try:
        return [name.decode() for name in reply if name.startswith(start)]
    except UnicodeDecodeError as error:
        raise ForeignData(redis_key, reason=f"it holds a member that is not UTF-8: {error.reason}") from None


def _newer(one: Record, other: Record) -> Record:
    return one if (one.epoch, one.version) >= (other.epoch, other.version) else other


def _beyond(prefix: str) -> str:
    """This is a text above every key that starts with the prefix."""
    return prefix + "\U0010ffff"
