"""Listing by prefix: what Postgres holds, overlaid with what is dirty in Redis.

The dirty keys are read before Postgres, so a key that is flushed in between is seen at least once; of two sights of one
key the higher version counts. A listing is not a snapshot: it shows each key as of some moment between the call and the
end of the iteration. The first page is asked for before the dirty keys are, which are read while Postgres works. It
counts where Postgres held all by then that was flushed when they were read, and Redis holds them still; else it is read
again.

A Postgres that was put back to what it held before lacks what Redis takes for flushed, until a worker has flushed it
again. So each page comes with the watermarks, read just before it, and where one is lower than what Redis has of it,
what was written beyond that one counts as dirty too: Redis keeps its keys until they are retired. Where they are,
nothing is listed: that Postgres is a copy, or the server from before a failover, until a worker has compared.

Where a shard's gate is closed, Postgres alone is believed, and only where it holds no less than Redis does, and than
Redis remembers that it held, unless the setting `stale_reads` accepts that. No state is listed that is older than one
that this process has seen: such a one is read by itself, and so is one that it has seen and a shard with a closed gate
does not show.

Bounds, order and what values must hold are pushed into Postgres, and hold alike for what is dirty: a state that is both
is what the newer of the two says. Of Postgres and of the dirty states as much is read as the limit needs. By key, dirty
states are read so many at a time, in order, and Postgres as far as these reach; then both again from there, and more of
them, for each look asks for the names of all. By age, all of them are, for nothing tells which is newest before it is
read. All that without their values. A page of Postgres' rows, which carry theirs, is merged with what is dirty among
them, and all of it given before more rows are asked for, or held. The values of what is dirty there are read when its
turn has come, of so many states at a time as are wanted, and as make a page by what was read. A state that has changed
by then is given as it is, and one that has left Redis is read by itself.

What Postgres holds of a state whose newest change is in quarantine is only that there is such a change. Redis is asked
for such a state, and may hold it for a while; once it does not, the record says `quarantined`, as a reader would see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from statecache.clock import boottime, monotonic
from statecache.core.read.dirty import Dirty, Look
from statecache.core.read.listed import STATEMENTS, Listed, Overlay, Sight, Watermark, watermarks_of
from statecache.errors import InvalidKey, PostgresUnavailable, RedisUnavailable
from statecache.keys import checked_prefix_of_list
from statecache.model import Record
from statecache.records import record_of_row, text_of
from statecache.rules.filters import Selection

if TYPE_CHECKING:
    from statecache.concurrency import Beside
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.read.reader import Reader
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.near import Near
    from statecache.settings import Settings

_BESIDE_S = 0.2
"""How long the first look at what is dirty is waited for, in seconds: a connection to Postgres is lent meanwhile."""
_PAGE = 500
_PAGE_MIN = 5
"""How many rows are read at once at most, and at least, however few are wanted."""
_PAGE_BYTES = 16 << 20
"""How many bytes of values are read at once, or a little more: the last of them is read whole."""
_DIRTY_MIN, _DIRTY_MAX = 200, 5_000
"""How many dirty states are read at once at least, and at most: for more of them all shards are looked at again."""
_VALUES_MIN, _VALUES_MAX = 20, 200
"""How many values of dirty states are read first, and how many at once at most, fewer where they are large."""
_Page = tuple[list[tuple[Any, ...]], dict[int, Watermark]]
"""Rows, and the watermarks of Postgres."""
_VALUE, _UPDATED_AT = 2, 11
"""The indexes of the value, and of the time of the change, in a row."""


class Listing:
    """Listings of live states under a prefix, and of states that only quarantine holds."""

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier, *, near: Near,
        reader: Reader,
    ) -> None:  # fmt: skip
        self._keys = keys
        self._clock = redis.clock
        self._postgres = postgres
        self._near = near
        self._reader = reader
        self._dirty = Dirty(settings, keys, redis, postgres, near=near, reader=reader)

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
        given, begun = 0, boottime()
        by_key = listed.order in ("key", "-key")
        pages = (self._by_key if by_key else self._by_age)(listed, shards, seconds)
        async for found in self._valued(pages, listed, seconds):
            sight = await self.seen(found, seconds, begun)
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
        found, shards, selection = set[str](), range(self._keys.shards), Selection(prefix="")
        names, look = await self._dirty.names(shards, seconds=seconds)
        seen = self._near.known_under("") if look.behind else ()
        names += [key for key in seen if self._keys.shard(key) in look.behind]
        while True:
            rows, watermarks = await self._page(Listed(selection=selection, values=False), shards, 1, seconds)
            look.refuse_less(watermarks)
            if Overlay({}, look.opened).lacking(watermarks):
                names, _ = await self._dirty.names(shards, seconds=seconds, watermarks=watermarks)
            if not rows:
                break
            found.add(namespace := rows[0][0].partition("/")[0])
            selection = Selection(prefix="", after=namespace + chr(ord("/") + 1))
        for namespace in {key.partition("/")[0] for key in names if "/" in key}:
            listed = Listed(selection=Selection(prefix=f"{namespace}/"), limit=1, values=False)
            try:
                live = {namespace async for _ in self.sights(listed, seconds=seconds)}
            except InvalidKey:  # no client of ours wrote it: whoever looks is shown it
                live = {namespace}
            found = found - {namespace} | live
        return sorted(found)

    async def seen(self, sight: Sight, seconds: float, begun: float) -> Sight:
        """Return the sight, or a newer one where this process has seen a newer state, or its end may have been put off.

        It may where it has come since a moment of `boottime` before which nothing was read.
        """
        record = sight.record
        if self._near.seen(record.key, (record.epoch, record.version)):
            if self._clock.lived(record) is record:
                return sight
            ended = self._clock.lived(record, begun)
            if ended is not record:
                return replace(sight, record=ended)
        return Sight(await self._reader.primary(record.key, end=monotonic() + seconds))

    async def overlay(
        self, listed: Listed, shards: Sequence[int], seconds: float, watermarks: Mapping[int, Watermark] | None = None
    ) -> Overlay:
        """Return what is dirty, all of it, as `Dirty.overlay` does."""
        return await self._dirty.overlay(listed, shards, seconds, watermarks)

    async def everything(self, rows: Sequence[Sequence[Any]], overlay: Overlay, seconds: float) -> dict[str, Sight]:
        """Return what is dirty, and rows with their values overlaid with that."""
        dirty = {key: Sight(record) for key, record in overlay.records.items()}
        return dirty | await self._overlaid(rows, overlay.records, seconds, values=True)

    async def _overlaid(
        self, rows: Sequence[Sequence[Any]], dirty: dict[str, Record], seconds: float, *, values: bool
    ) -> dict[str, Sight]:
        """Overlay rows with what is dirty, and rows of quarantined changes with what Redis holds of them."""
        stored = {record.key: record for record, _ in map(record_of_row, rows)}
        found = {key: _newer(record, dirty.get(key, record)) for key, record in stored.items()}
        parked = [key for key, record in found.items() if record.op == "quarantined"]
        held, _ = await self._dirty.held(parked, seconds, values=values)
        sights = {key: Sight(record, stored=record.change_id == stored[key].change_id) for key, record in found.items()}
        for key in parked:
            newest = _newer(held.get(key, found[key]), found[key])
            sights[key] = Sight(newest, parked=newest.change_id == found[key].change_id)
        return sights

    async def _by_key(self, listed: Listed, shards: Sequence[int], seconds: float) -> AsyncIterator[list[Sight]]:
        """Yield the sights by key: as far as the dirty states reach that are read at once, then from there on."""
        page = _PAGE if listed.limit is None else min(_PAGE, max(listed.limit, _PAGE_MIN))
        rest: Listed | None = listed
        most = max(page, _DIRTY_MIN)
        while rest is not None:
            until = monotonic() + seconds
            first, looked = await self._at_once(rest, shards, page, until)
            overlay = await self._dirty.overlay(rest.light, shards, _left(until), most=most, looked=looked)
            most = min(most * 4, _DIRTY_MAX)
            selection, up_to = rest.selection, overlay.up_to
            part = selection if up_to is None else selection.up_to(up_to, down=listed.down)
            first = first if up_to is None else None
            async for some in self._merged(replace(rest, selection=part), overlay, shards, page, seconds, first, until):
                yield some
            beyond = None if up_to is None else selection.beyond(up_to, down=listed.down)
            rest = None if beyond is None else replace(rest, selection=beyond)

    async def _at_once(
        self, listed: Listed, shards: Sequence[int], most: int | None, until: float
    ) -> tuple[_Page | None, Look | None]:
        """Return a page, and a first look at what is dirty, had while Postgres worked; None for what did not come.

        Behind a closed gate Postgres is believed as it is after the look, so then no page is returned.
        """
        looked = list[Look]()

        async def look() -> None:
            with suppress(RedisUnavailable):
                looked.append(await self._dirty.look(shards, min(_left(until), _BESIDE_S)))

        try:
            page = await self._page(listed, shards, most, _left(until), beside=look)
        except PostgresUnavailable:
            if not looked:
                await self._tell_of_redis(shards)
            raise
        if not looked:
            return None, None
        return page if len(looked[0].opened) == len(shards) else None, looked[0]

    async def _tell_of_redis(self, shards: Sequence[int]) -> None:
        """Raise RedisUnavailable where Redis is away too; an answer that is only late says nothing.

        Nor does a new connection to it, for which Postgres is asked once more.
        """
        try:
            await self._dirty.look(shards, _BESIDE_S)
        except RedisUnavailable as error:
            if error.reason != "timeout":
                raise
        except PostgresUnavailable:
            pass

    async def _merged(
        self, listed: Listed, overlay: Overlay, shards: Sequence[int], page: int, seconds: float, first: _Page | None,
        until: float,
    ) -> AsyncIterator[list[Sight]]:  # fmt: skip
        """Yield the sights of each page of Postgres' rows merged with the dirty states, by key.

        They grow from `page` rows. `first` is a page that was asked for before the overlay was; without it one is read,
        in the time `until` then.
        """
        down, more = listed.down, True
        waiting = sorted(overlay.records, reverse=not down)
        while more:
            if first is None or not overlay.follows(first[1]):
                first = await self._page(listed, shards, page, _left(until))
            (rows, watermarks), first = first, None
            more, page = _is_cut(rows, page), min(page * 4, _PAGE)
            if overlay.lacking(watermarks):
                overlay = await self._dirty.overlay(listed.light, shards, _left(until), watermarks)
                waiting = sorted(overlay.records, reverse=not down)
            sights = await self._overlaid(rows, overlay.records, seconds, values=listed.reads_values)
            merged = list[Sight]()
            for key, sight in sights.items():
                while waiting and (waiting[-1] > key if down else waiting[-1] < key):
                    merged.append(Sight(overlay.records[waiting.pop()]))
                if waiting and waiting[-1] == key:
                    waiting.pop()
                merged.append(sight)
            if not more:
                merged += [Sight(overlay.records[key]) for key in reversed(waiting)]
            yield merged
            if more:
                listed = replace(listed, selection=listed.selection.beyond(rows[-1][0], down=down))
                until = monotonic() + seconds  # what is wanted beyond is asked for anew

    async def _by_age(self, listed: Listed, shards: Sequence[int], seconds: float) -> AsyncIterator[list[Sight]]:
        """Yield the sights by the time of their change, and ask for more rows once more are wanted.

        A row that was not asked for comes behind the last one: what does not, is certain. What has changed since it
        was given is not given again; what has changed before it was, is given, though newer ones were before.
        """
        wanted, until = listed.limit, monotonic() + seconds
        first, looked = await self._at_once(listed, shards, wanted, until)
        overlay = await self._dirty.overlay(listed.light, shards, _left(until), looked=looked)
        given = set[str]()
        while True:
            if first is None or not overlay.follows(first[1]):
                first = await self._page(listed, shards, wanted, _left(until))
            (rows, watermarks), first = first, None
            if overlay.lacking(watermarks):
                overlay = await self._dirty.overlay(listed.light, shards, _left(until), watermarks)
                continue
            sights = await self._overlaid(rows, overlay.records, seconds, values=listed.reads_values)
            found = {key: Sight(record) for key, record in overlay.records.items()} | sights
            end = (text_of(rows[-1][_UPDATED_AT]), rows[-1][0]) if wanted is not None and len(rows) == wanted else None
            ages = sorted(((_age(one), one) for one in found.values()), key=itemgetter(0), reverse=listed.down)
            certain = [one for age, one in ages if end is None or not _is_behind(age, end, down=listed.down)]
            yield [one for one in certain if one.record.key not in given]
            given.update(one.record.key for one in certain)
            if end is None or wanted is None:
                return
            wanted *= 2
            until = monotonic() + seconds

    async def _valued(self, pages: AsyncIterator[list[Sight]], listed: Listed, seconds: float) -> AsyncIterator[Sight]:
        """Yield the sights of each page with their values: of so many at a time as are wanted, then of more."""
        wanted = min(listed.limit or _VALUES_MIN, _VALUES_MIN)
        async for page in pages:
            waiting = iter(page)
            while some := _taken(waiting, wanted):
                light = {one.record.key for one in some if one.is_light} if listed.reads_values else set[str]()
                held, _ = await self._dirty.held([*light], seconds, values=True)
                size = sum(len(record.value) for record in held.values())
                page_of = _PAGE_BYTES * len(held) // size if size else _VALUES_MAX
                wanted = max(1, min(wanted * 4, page_of, _VALUES_MAX))
                for one in some:
                    if (key := one.record.key) in light:
                        record = held.pop(key, None) or await self._reader.primary(key, end=monotonic() + seconds)
                        one = Sight(record)
                    yield one

    async def _page(
        self, listed: Listed, shards: Sequence[int], most: int | None, seconds: float, *, beside: Beside | None = None
    ) -> _Page:
        """Return a page of rows, and the watermarks of the shards, read just before it: it holds no less."""
        asked = {
            "prefix": listed.selection.prefix, "values": listed.values, "limit": most, "bytes": _PAGE_BYTES,
            "shards": [*shards],
        }  # fmt: skip
        names = "watermarks", STATEMENTS[listed.order]
        watermarks, rows = await self._postgres.fetch_each(
            names, asked | listed.selection.bounds(), seconds=seconds, beside=beside
        )
        return rows, watermarks_of(watermarks)


def _is_cut(rows: Sequence[Sequence[Any]], most: int) -> bool:
    """Return whether there may be more behind a page by key of at most so many rows."""
    return len(rows) == most or sum(len(row[_VALUE]) for row in rows) >= _PAGE_BYTES


def _taken(waiting: Iterator[Sight], wanted: int) -> list[Sight]:
    """Take the next sights, up to so many that are to be listed."""
    taken = list[Sight]()
    while wanted and (one := next(waiting, None)):
        taken.append(one)
        wanted -= one.is_listed
    return taken


def _left(until: float) -> float:
    return max(until - monotonic(), 0.001)


def _newer(one: Record, other: Record) -> Record:
    return one if (one.epoch, one.version) >= (other.epoch, other.version) else other


def _is_behind(one: tuple[str, str], other: tuple[str, str], *, down: bool) -> bool:
    """Return whether one age comes behind another one."""
    return one < other if down else one > other


def _age(sight: Sight) -> tuple[str, str]:
    return sight.record.updated_at, sight.record.key
