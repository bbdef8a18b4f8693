"""Listing by prefix: what Postgres holds, overlaid with what is dirty in Redis.

The dirty keys are read first and Postgres after them, so a key that is flushed in between is seen at least once; of
two sights of one key the higher version counts. A listing is not a snapshot: it shows each key as of some moment
between the call and the end of the iteration.

A Postgres that was put back to what it held before lacks what Redis takes for flushed, until a worker has flushed it
again. So each page comes with the watermarks of the same moment, and where one is lower than what Redis has of it, what
was written beyond that one counts as dirty too: Redis keeps its keys as long as its entries.

Where a shard's gate is closed, Postgres alone is believed, and only where it holds no less than Redis does, unless the
setting `stale_reads` accepts that. No state is listed that is older than one that this process has seen: such a one is
read by itself, and so is one that it has seen and a shard with a closed gate does not show.

What Postgres holds of a state whose newest change is in quarantine is only that there is such a change. Redis is asked
for such a state, and may hold it for a while; once it does not, the record says `quarantined`, as a reader would see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from redis.exceptions import ResponseError

from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.errors import ForeignData
from statecache.keys import checked_prefix_of_list
from statecache.lua import script
from statecache.model import Record
from statecache.records import FIELDS, absence, record_of, record_of_row
from statecache.redis_errors import refusal

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.read.reader import Reader
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.near import Near
    from statecache.resp import Command
    from statecache.settings import Settings

_GATE_S = 0.5
"""How long a gate that was found closed is waited for at most, in seconds."""
_PAGE = 500
_KEYS_PER_READ = 200
_FLUSHED = 5
"""The index of a shard's watermark in the answer of the script `heads`."""

Order = Literal["key", "newest"]


class Sight(msgspec.Struct, frozen=True):
    """A record as a listing saw it; `stored` says that Postgres holds it, `parked` that its change is in quarantine."""

    record: Record
    stored: bool = False
    parked: bool = False

    @property
    def is_listed(self) -> bool:
        """Whether there is a state, or was one that only quarantine holds."""
        return self.record.exists or self.record.op == "quarantined"


class Overlay(msgspec.Struct, frozen=True):
    """What Redis holds that Postgres may not have, by key; and the watermarks of the open shards to go by."""

    records: dict[str, Record]
    flushed: dict[int, int]

    def lacking(self, watermarks: Mapping[int, int]) -> bool:
        """Return whether Postgres, with these watermarks, lacks more than what is held here."""
        return any(watermarks.get(shard, 0) < flushed for shard, flushed in self.flushed.items())


class Listing:
    """Listings of live states under a prefix, and of states that only quarantine holds."""

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier, *, near: Near,
        reader: Reader,
    ) -> None:  # fmt: skip
        self._fence, self._stale_reads = settings.fence, settings.stale_reads
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._near = near
        self._reader = reader

    async def records(self, prefix: str, *, order: Order, limit: int | None, seconds: float) -> AsyncIterator[Record]:
        """Yield the records in that order; `seconds` bounds each exchange with a server."""
        async for sight in self.sights(prefix, order=order, limit=limit, seconds=seconds):
            yield sight.record

    async def sights(self, prefix: str, *, order: Order, limit: int | None, seconds: float) -> AsyncIterator[Sight]:
        """Yield the records in that order, each with whether Postgres or only quarantine holds it."""
        prefix, shard = checked_prefix_of_list(prefix, self._keys.shards)
        shards = range(self._keys.shards) if shard is None else [shard]
        given = 0
        if order == "key":
            pages = self._by_key(prefix, shards, seconds)
        else:
            pages = self._newest(prefix, shards, limit, seconds)
        async for found in pages:
            if limit is not None and given >= limit:
                return
            sight = await self._seen(found, seconds)
            if sight.is_listed:
                given += 1
                yield sight

    async def namespaces(self, *, seconds: float) -> list[str]:
        """Return the namespaces of live states, and of changes that are not yet in Postgres, sorted.

        Postgres is asked for the first key behind each namespace in turn: so many look-ups in the index as there are.
        """
        names, text, found = self._keys, script("dirty").text, set[str]()
        shards = range(names.shards)
        commands = [("EVAL", text, 2, names.meta(shard), names.unflushed(shard)) for shard in shards]
        for shard, reply in zip(shards, await self._redis.read(commands, seconds=seconds), strict=True):
            found |= {key.partition("/")[0] for key in _keys_in(reply, names.unflushed(shard), b"") if "/" in key}
        parameters = {"prefix": "", "beyond": _beyond(""), "after": "", "limit": 1}
        while True:
            rows, _ = await self._page("list_by_key", parameters, seconds)
            if not rows:
                return sorted(found)
            found.add(namespace := rows[0][0].partition("/")[0])
            parameters["after"] = namespace + chr(ord("/") + 1)

    async def _dirty(
        self, prefix: str, shards: Sequence[int], seconds: float, watermarks: Mapping[int, int] | None = None
    ) -> Overlay:
        """Return the states under the prefix that Postgres may not have yet, tombstones too, of the open shards.

        `watermarks` are given for a Postgres that went back: they count where they are lower than what Redis has of
        them.

        A closed gate is left a moment to open; one behind which there is more than Postgres holds, all of the time.
        """
        end, backoff, names = monotonic() + seconds, Backoff(0.005, 0.1), self._keys
        patient_until = monotonic() + min(_GATE_S, seconds / 4)
        while True:
            text = script("dirty").text
            went_back = {} if watermarks is None else {shard: [watermarks.get(shard, 0)] for shard in shards}
            commands = [
                ("EVAL", text, 2, names.meta(shard), names.unflushed(shard), *went_back.get(shard, ()))
                for shard in shards
            ]
            opened, replies = await self._read(shards, commands, max(end - monotonic(), 0.001))
            found, behind = list[str](), list[str]()
            for shard, reply in zip(shards, replies, strict=True):
                keys = _keys_in(reply, self._keys.unflushed(shard), prefix.encode())
                (found if shard in opened else behind).extend(keys)
            closed, missed = set(shards) - opened.keys(), None
            settled = not closed or monotonic() >= patient_until
            if closed and settled:
                missed = await self._missed(prefix, closed, behind, seconds)
            if missed is not None:
                await self._reader.primary(missed, end=end)
            elif settled:
                held, shut = await self._held(found, seconds)
                if not shut:  # the gate of none of them has closed meanwhile
                    told = {shard: min([flushed, *went_back.get(shard, ())]) for shard, flushed in opened.items()}
                    return Overlay(held, told)
            await self._redis.io.sleep(backoff.take())

    async def _missed(self, prefix: str, closed: set[int], behind: Sequence[str], seconds: float) -> str | None:
        """Return a key of a closed shard of which this process, or Redis, has a newer state than Postgres; or None."""
        known = [key for key in self._near.known_under(prefix) if self._keys.shard(key) in closed]
        places = await self._places(behind, seconds)
        wanted = [*dict.fromkeys([*known, *places])]
        for at in range(0, len(wanted), _PAGE):
            some = wanted[at : at + _PAGE]
            rows = await self._postgres.fetch("states", {"keys": some}, seconds=seconds)
            held = {record.key: record for record, _ in map(record_of_row, rows)}
            for key in some:
                record = held.get(key) or absence(key, self._near.epoch_of(key))
                place = (record.epoch, record.version)
                if place < places.get(key, place) or not self._near.seen(key, place):
                    return key
        return None

    async def _places(self, keys: Sequence[str], seconds: float) -> dict[str, tuple[int, int]]:
        """Return epoch and version of those of the states that Redis holds, believed or not."""
        places: dict[str, tuple[int, int]] = {}
        for at in range(0, len(keys), _KEYS_PER_READ):
            some = keys[at : at + _KEYS_PER_READ]
            reads = [("HMGET", self._keys.state(key), "epoch", "version") for key in some]
            for key, reply in zip(some, await self._redis.read(reads, seconds=seconds), strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, self._keys.state(key)) from reply
                if None not in reply:
                    places[key] = (int(reply[0]), int(reply[1]))
        return places

    async def _read(
        self, shards: Sequence[int], commands: Sequence[Command], seconds: float
    ) -> tuple[dict[int, int], list[Any]]:
        """Return which of the shards are open on the server, with their watermarks, and the replies to the commands."""
        metas = [self._keys.meta(shard) for shard in shards]
        try:
            answer, *replies = await self._redis.read_script(
                "heads", metas, [self._fence], behind=commands, seconds=seconds
            )
        except ResponseError as error:
            raise refusal(error, metas[0]) from error
        server, _, *heads = answer
        opened = {
            shard: int(head[_FLUSHED] or 0) if isinstance(head, list) else 0
            for shard, head in zip(shards, heads, strict=True)
            if self._stale_reads or (isinstance(head, list) and head[0] and head[1] == server)
        }
        return opened, replies

    async def _held(self, keys: Sequence[str], seconds: float) -> tuple[dict[str, Record], set[int]]:
        """Return what Redis holds of the keys whose shards are open, and which of their shards are not."""
        held, closed = dict[str, Record](), set[int]()
        for at in range(0, len(keys), _KEYS_PER_READ):
            some = keys[at : at + _KEYS_PER_READ]
            shards = {*map(self._keys.shard, some)}
            reads = [("HMGET", self._keys.state(key), *FIELDS) for key in some]
            opened, replies = await self._read(sorted(shards), reads, seconds)
            closed |= shards - opened.keys()
            for key, reply in zip(some, replies, strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, self._keys.state(key)) from reply
                record = record_of(self._keys.state(key), key, reply) if self._keys.shard(key) in opened else None
                if record is not None:
                    held[key] = record
        return held, closed

    async def _seen(self, sight: Sight, seconds: float) -> Sight:
        """Return the sight, or a newer one where this process has seen a newer state."""
        record = sight.record
        if self._near.seen(record.key, (record.epoch, record.version)):
            return sight
        return Sight(await self._reader.primary(record.key, end=monotonic() + seconds))

    async def _overlaid(
        self, rows: Sequence[Sequence[Any]], dirty: dict[str, Record], seconds: float
    ) -> dict[str, Sight]:
        """Overlay rows with what is dirty, and rows of quarantined changes with what Redis holds of them."""
        stored = {record.key: record for record, _ in map(record_of_row, rows)}
        found = {key: _newer(record, dirty.get(key, record)) for key, record in stored.items()}
        parked = [key for key, record in found.items() if record.op == "quarantined"]
        held, _ = await self._held(parked, seconds)
        sights = {key: Sight(record, stored=record.change_id == stored[key].change_id) for key, record in found.items()}
        for key in parked:
            newest = _newer(held.get(key, found[key]), found[key])
            sights[key] = Sight(newest, parked=newest.change_id == found[key].change_id)
        return sights

    async def _by_key(self, prefix: str, shards: Sequence[int], seconds: float) -> AsyncIterator[Sight]:
        """Yield the sights of Postgres' rows merged with the dirty states, in byte order of their keys."""
        overlay = await self._dirty(prefix, shards, seconds)
        waiting = sorted(overlay.records, key=str.encode, reverse=True)
        after, more = "", True
        while more:
            parameters = {"prefix": prefix, "beyond": _beyond(prefix), "after": after, "limit": _PAGE}
            rows, watermarks = await self._page("list_by_key", parameters, seconds)
            more = len(rows) == _PAGE
            if overlay.lacking(watermarks):
                overlay = await self._dirty(prefix, shards, seconds, watermarks)
                beyond = (key for key in overlay.records if key.encode() > after.encode())
                waiting = sorted(beyond, key=str.encode, reverse=True)
            for after, sight in (await self._overlaid(rows, overlay.records, seconds)).items():
                while waiting and waiting[-1].encode() < after.encode():
                    yield Sight(overlay.records[waiting.pop()])
                if waiting and waiting[-1] == after:
                    waiting.pop()
                yield sight
        while waiting:
            yield Sight(overlay.records[waiting.pop()])

    async def _newest(
        self, prefix: str, shards: Sequence[int], limit: int | None, seconds: float
    ) -> AsyncIterator[Sight]:
        """Yield the sights newest first; ask for more rows while `limit` is not reached, for some may be deleted."""
        overlay = await self._dirty(prefix, shards, seconds)
        wanted = None if limit is None else limit + len(overlay.records)
        while True:
            parameters = {"prefix": prefix, "beyond": _beyond(prefix), "limit": wanted}
            rows, watermarks = await self._page("list_newest", parameters, seconds)
            if overlay.lacking(watermarks):
                overlay = await self._dirty(prefix, shards, seconds, watermarks)
                wanted = None if limit is None else limit + len(overlay.records)
                continue
            sights = await self._overlaid(rows, overlay.records, seconds)
            if limit is None or wanted is None or len(rows) < wanted:
                break
            if sum(sight.is_listed for sight in sights.values()) >= limit:
                break
            wanted *= 2
        found = {key: Sight(record) for key, record in overlay.records.items()} | sights
        for sight in sorted(found.values(), key=lambda one: (one.record.updated_at, one.record.key), reverse=True):
            yield sight

    async def _page(
        self, name: str, parameters: dict[str, Any], seconds: float
    ) -> tuple[list[tuple[Any, ...]], dict[int, int]]:
        """Return a page of rows, and the watermark of every shard at the moment of that page."""
        (*_, watermarks), *rows = await self._postgres.fetch(name, parameters, seconds=seconds)
        return rows, {int(shard): int(flushed) for shard, flushed in (one.split() for one in watermarks)}


def _keys_in(reply: Any, redis_key: str, start: bytes) -> list[str]:
    """Return the dirty keys of one shard that begin with `start`."""
    if isinstance(reply, Exception):
        raise refusal(reply, redis_key) from reply
    try:
        return [name.decode() for name in reply if name.startswith(start)]
    except UnicodeDecodeError as error:
        raise ForeignData(redis_key, reason=f"it holds a member that is not UTF-8: {error.reason}") from None


def _newer(one: Record, other: Record) -> Record:
    return one if (one.epoch, one.version) >= (other.epoch, other.version) else other


def _beyond(prefix: str) -> str:
    """Return a text above every key that starts with the prefix."""
    return prefix + "\U0010ffff"
