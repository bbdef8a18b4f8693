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

Bounds, order and what values must hold are pushed into Postgres, and hold alike for what is dirty: a state that is both
is what the newer of the two says. Of Postgres and of the dirty states as much is read as the limit needs. By key, dirty
states are read so many at a time, in order, and Postgres as far as these reach; then both again from there. By age, all
of them are, for nothing tells which is newest before it is read.

What Postgres holds of a state whose newest change is in quarantine is only that there is such a change. Redis is asked
for such a state, and may hold it for a while; once it does not, the record says `quarantined`, as a reader would see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from redis.exceptions import ResponseError

from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.core.parts import in_parts
from statecache.core.read.listed import STATEMENTS, Listed, Overlay, Sight
from statecache.errors import ForeignData, InvalidKey
from statecache.keys import checked_prefix_of_list
from statecache.lua import script
from statecache.model import Record
from statecache.records import FIELDS, absence, record_of, record_of_row, text_of
from statecache.redis_errors import refusal
from statecache.rules.filters import Selection

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
_PAGE_MIN = 20
"""How many rows are read at once at most, and at least, however few are wanted."""
_DIRTY_MIN = 200
"""How many dirty states are read at once at least, for more of them cost another look at all shards."""
_KEYS_PER_READ = 200
_SHARDS_PER_SCRIPT = 16
_FLUSHED = 5
"""The index of a shard's watermark in the answer of the script `heads`."""
_BEFORE_ALL = {False: ("", ""), True: ("~", "")}
"""The age before every other one, by whether the newest come first."""
_UPDATED_AT = 11
"""The index of the time of the change in a row."""
_VALUE = FIELDS.index("value")
_LIGHT = tuple(name for name in FIELDS if name != "value")


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

    async def records(self, listed: Listed, *, seconds: float) -> AsyncIterator[Record]:
        """Yield the records in that order; `seconds` bounds each exchange with a server."""
        async for sight in self.sights(listed, seconds=seconds):
            yield sight.record

    async def sights(self, listed: Listed, *, seconds: float) -> AsyncIterator[Sight]:
        """Yield the records in that order, each with whether Postgres or only quarantine holds it.

        Postgres has compared the values of what it holds; those of all others are compared here.
        """
        prefix, shard = listed.selection.prefix, None
        if prefix:
            _, shard = checked_prefix_of_list(prefix, self._keys.shards)
        shards = range(self._keys.shards) if shard is None else [shard]
        given = 0
        by_key = listed.order in ("key", "-key")
        async for found in (self._by_key if by_key else self._by_age)(listed, shards, seconds):
            sight = await self._seen(found, seconds)
            if sight.is_listed and sight.holds(listed.selection.filter):
                given += 1
                yield sight
                if given == listed.limit:
                    return

    async def namespaces(self, *, seconds: float) -> list[str]:
        """Return the namespaces of live states, those not yet in Postgres too, sorted.

        Postgres is asked for the first key behind each namespace in turn: so many look-ups in the index as there are.
        Where something is on its way there, that may be the delete of all that was there: one state is looked for.
        """
        moving, found, shards = set[str](), set[str](), range(self._keys.shards)
        replies = await self._redis.read(self._dirty_commands(shards, {}), seconds=seconds)
        for _, keys in self._dirty_keys(shards, replies, b""):
            moving |= {key.partition("/")[0] for key in keys if "/" in key}
        selection = Selection(prefix="")
        while True:
            rows, _ = await self._page(Listed(selection=selection, values=False), 1, seconds)
            if not rows:
                break
            found.add(namespace := rows[0][0].partition("/")[0])
            selection = Selection(prefix="", after=namespace + chr(ord("/") + 1))
        for namespace in moving:
            listed = Listed(selection=Selection(prefix=f"{namespace}/"), limit=1, values=False)
            try:
                live = {namespace async for _ in self.sights(listed, seconds=seconds)}
            except InvalidKey:  # no client of ours wrote it: whoever looks is shown it
                live = {namespace}
            found = found - {namespace} | live
        return sorted(found)

    async def _dirty(
        self, listed: Listed, shards: Sequence[int], seconds: float, watermarks: Mapping[int, int] | None = None,
        most: int | None = None,
    ) -> Overlay:  # fmt: skip
        """Return the selected states that Postgres may not have yet, tombstones too, of the open shards.

        `watermarks` are given for a Postgres that went back: they count where they are lower than what Redis has of
        them. Of more than `most` the first ones are returned, in the order of their keys.

        A closed gate is left a moment to open; one behind which there is more than Postgres holds, all of the time.
        """
        end, backoff = monotonic() + seconds, Backoff(0.005, 0.1)
        patient_until = monotonic() + min(_GATE_S, seconds / 4)
        went_back = {} if watermarks is None else {shard: watermarks.get(shard, 0) for shard in shards}
        commands, start = self._dirty_commands(shards, went_back), listed.selection.prefix.encode()
        while True:
            opened, replies = await self._read(shards, commands, max(end - monotonic(), 0.001))
            found, behind = list[str](), list[str]()
            for shard, keys in self._dirty_keys(shards, replies, start):
                (found if shard in opened else behind).extend(filter(listed.selection.means, keys))
            closed, missed = set(shards) - opened.keys(), None
            settled = not closed or monotonic() >= patient_until
            if closed and settled:
                missed = await self._missed(listed.selection, closed, behind, seconds)
            if missed is not None:
                await self._reader.primary(missed, end=end)
            elif settled:
                first, up_to = _first(found, most, down=listed.down)
                held, shut = await self._held(first, seconds, values=listed.reads_values)
                if not shut:  # the gate of none of them has closed meanwhile
                    told = {shard: min(flushed, went_back.get(shard, flushed)) for shard, flushed in opened.items()}
                    return Overlay(held, told, up_to)
            await self._redis.io.sleep(backoff.take())

    def _dirty_commands(self, shards: Sequence[int], went_back: Mapping[int, int]) -> list[Command]:
        """Return what asks which keys are dirty: a few shards in each command, during which nobody else is served."""
        names, text, commands = self._keys, script("dirty").text, list[Any]()
        for some in in_parts(shards, _SHARDS_PER_SCRIPT):
            keys = [name for shard in some for name in (names.meta(shard), names.unflushed(shard))]
            commands.append(("EVAL", text, len(keys), *keys, *(went_back.get(shard, "") for shard in some)))
        return commands

    def _dirty_keys(
        self, shards: Sequence[int], replies: Sequence[Any], start: bytes
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield for each shard its dirty keys that begin with `start`."""
        for some, reply in zip(in_parts(shards, _SHARDS_PER_SCRIPT), replies, strict=True):
            for shard, names in zip(some, [reply] * len(some) if isinstance(reply, Exception) else reply, strict=True):
                yield shard, _keys_in(names, self._keys.unflushed(shard), start)

    async def _missed(
        self, selection: Selection, closed: set[int], behind: Sequence[str], seconds: float
    ) -> str | None:
        """Return a key of a closed shard of which this process, or Redis, has a newer state than Postgres; or None."""
        seen = filter(selection.means, self._near.known_under(selection.prefix))
        known = [key for key in seen if self._keys.shard(key) in closed]
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

    async def _held(self, keys: Sequence[str], seconds: float, *, values: bool) -> tuple[dict[str, Record], set[int]]:
        """Return what Redis holds of the keys whose shards are open, and which of their shards are not."""
        held, closed = dict[str, Record](), set[int]()
        for at in range(0, len(keys), _KEYS_PER_READ):
            some = keys[at : at + _KEYS_PER_READ]
            shards = {*map(self._keys.shard, some)}
            reads = [("HMGET", self._keys.state(key), *(FIELDS if values else _LIGHT)) for key in some]
            opened, replies = await self._read(sorted(shards), reads, seconds)
            closed |= shards - opened.keys()
            for key, reply in zip(some, replies, strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, self._keys.state(key)) from reply
                if not values:
                    reply.insert(_VALUE, None if all(part is None for part in reply) else b"")
                record = record_of(self._keys.state(key), key, reply) if self._keys.shard(key) in opened else None
                if record is not None:
                    held[key] = record
        return held, closed

    async def _seen(self, sight: Sight, seconds: float) -> Sight:
        """Return the sight as it is now, or a newer one where this process has seen a newer state."""
        record = sight.record
        if self._near.seen(record.key, (record.epoch, record.version)):
            lived = self._redis.clock.lived(record)
            return sight if lived is record else replace(sight, record=lived)
        return Sight(await self._reader.primary(record.key, end=monotonic() + seconds))

    async def _overlaid(
        self, rows: Sequence[Sequence[Any]], dirty: dict[str, Record], seconds: float, *, values: bool
    ) -> dict[str, Sight]:
        """Overlay rows with what is dirty, and rows of quarantined changes with what Redis holds of them."""
        stored = {record.key: record for record, _ in map(record_of_row, rows)}
        found = {key: _newer(record, dirty.get(key, record)) for key, record in stored.items()}
        parked = [key for key, record in found.items() if record.op == "quarantined"]
        held, _ = await self._held(parked, seconds, values=values)
        sights = {key: Sight(record, stored=record.change_id == stored[key].change_id) for key, record in found.items()}
        for key in parked:
            newest = _newer(held.get(key, found[key]), found[key])
            sights[key] = Sight(newest, parked=newest.change_id == found[key].change_id)
        return sights

    async def _by_key(self, listed: Listed, shards: Sequence[int], seconds: float) -> AsyncIterator[Sight]:
        """Yield the sights by key: as far as the dirty states reach that are read at once, then from there on."""
        page = _PAGE if listed.limit is None else min(_PAGE, max(listed.limit, _PAGE_MIN))
        rest: Listed | None = listed
        while rest is not None:
            overlay = await self._dirty(rest, shards, seconds, most=max(page, _DIRTY_MIN))
            selection, up_to = rest.selection, overlay.up_to
            part = selection if up_to is None else selection.up_to(up_to, down=listed.down)
            async for sight in self._merged(replace(rest, selection=part), overlay, shards, page, seconds):
                yield sight
            beyond = None if up_to is None else selection.beyond(up_to, down=listed.down)
            rest = None if beyond is None else replace(rest, selection=beyond)

    async def _merged(
        self, listed: Listed, overlay: Overlay, shards: Sequence[int], page: int, seconds: float
    ) -> AsyncIterator[Sight]:
        """Yield the sights of Postgres' rows merged with the dirty states, by key; pages grow from `page` rows."""
        down, more = listed.down, True
        waiting = sorted(overlay.records, reverse=not down)
        while more:
            rows, watermarks = await self._page(listed, page, seconds)
            more, page = len(rows) == page, min(page * 4, _PAGE)
            if overlay.lacking(watermarks):
                overlay = await self._dirty(listed, shards, seconds, watermarks)
                waiting = sorted(overlay.records, reverse=not down)
            sights = await self._overlaid(rows, overlay.records, seconds, values=listed.reads_values)
            for key, sight in sights.items():
                while waiting and (waiting[-1] > key if down else waiting[-1] < key):
                    yield Sight(overlay.records[waiting.pop()])
                if waiting and waiting[-1] == key:
                    waiting.pop()
                yield sight
            if more:
                listed = replace(listed, selection=listed.selection.beyond(rows[-1][0], down=down))
        while waiting:
            yield Sight(overlay.records[waiting.pop()])

    async def _by_age(self, listed: Listed, shards: Sequence[int], seconds: float) -> AsyncIterator[Sight]:
        """Yield the sights by the time of their change, and ask for more rows once more are wanted.

        A row that was not asked for comes behind the last one: what does not, is certain. What has changed since it
        was given, or would come before that, is not given again.
        """
        overlay, wanted = await self._dirty(listed, shards, seconds), listed.limit
        given, reached = set[str](), _BEFORE_ALL[listed.down]
        while True:
            rows, watermarks = await self._page(listed, wanted, seconds)
            if overlay.lacking(watermarks):
                overlay = await self._dirty(listed, shards, seconds, watermarks)
                continue
            sights = await self._overlaid(rows, overlay.records, seconds, values=listed.reads_values)
            found = {key: Sight(record) for key, record in overlay.records.items()} | sights
            end = (text_of(rows[-1][_UPDATED_AT]), rows[-1][0]) if wanted is not None and len(rows) == wanted else None
            for age, sight in sorted(
                ((_age(one), one) for one in found.values()), key=itemgetter(0), reverse=listed.down
            ):
                if end is not None and _is_behind(age, end, down=listed.down):
                    break
                if sight.record.key not in given and _is_behind(age, reached, down=listed.down):
                    given.add(sight.record.key)
                    reached = age
                    yield sight
            if end is None or wanted is None:
                return
            wanted *= 2

    async def _page(
        self, listed: Listed, most: int | None, seconds: float
    ) -> tuple[list[tuple[Any, ...]], dict[int, int]]:
        """Return a page of rows, and the watermark of every shard at the moment of that page."""
        selection = listed.selection
        asked = {"prefix": selection.prefix, "values": listed.values, "limit": most, **selection.bounds()}
        (*_, watermarks), *rows = await self._postgres.fetch(STATEMENTS[listed.order], asked, seconds=seconds)
        return rows, {int(shard): int(flushed) for shard, flushed in (one.split() for one in watermarks)}


def _keys_in(reply: Any, redis_key: str, start: bytes) -> list[str]:
    """Return the dirty keys of one shard that begin with `start`."""
    if isinstance(reply, bytes):
        reply = ResponseError(reply.decode("utf-8", "replace"))
    if isinstance(reply, Exception):
        raise refusal(reply, redis_key) from reply
    try:
        return [name.decode() for name in reply if name.startswith(start)]
    except UnicodeDecodeError as error:
        raise ForeignData(redis_key, reason=f"it holds a member that is not UTF-8: {error.reason}") from None


def _newer(one: Record, other: Record) -> Record:
    return one if (one.epoch, one.version) >= (other.epoch, other.version) else other


def _first(keys: list[str], most: int | None, *, down: bool) -> tuple[list[str], str | None]:
    """Return the keys, or the first of them and the last one of these where there are more than `most`."""
    if most is None or len(keys) <= most:
        return keys, None
    first = sorted(keys, reverse=down)[:most]
    return first, first[-1]


def _is_behind(one: tuple[str, str], other: tuple[str, str], *, down: bool) -> bool:
    """Return whether one age comes behind another one."""
    return one < other if down else one > other


def _age(sight: Sight) -> tuple[str, str]:
    return sight.record.updated_at, sight.record.key
