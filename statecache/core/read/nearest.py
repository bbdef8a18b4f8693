"""The states whose vectors are the nearest to one: by an index of Postgres where there is one, else by comparing all.

Where a namespace's vectors are indexed, Postgres gives the states that its index takes for the nearest, and all those
that wait to be indexed; what is dirty in Redis is laid over that, as in a listing. All of these are compared exactly,
so a state counts as it is now, wherever the index has got to, and only what the index does not find is missed. More is
asked for until what it has not given cannot be nearer than what is returned.

Without an index all states under the prefix are compared, of so many at most; for a part of them would be no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.clock import boottime, monotonic
from statecache.core.read.listed import Listed, Sight, watermarks_of
from statecache.errors import ConfigurationError, LimitExceeded, PostgresUnavailable, UsageError
from statecache.keys import checked_prefix_of_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.read.listing import Listing
    from statecache.keys import KeySpace
    from statecache.model import Record
    from statecache.rules.filters import Selection
    from statecache.rules.vectors import Vector

COMPARED_MAX = 10_000
"""How many states are compared at most that no index has chosen."""
_ASKED_MIN, _ASKED_MAX, _GROWTH = 16, 20_000, 4
"""How many vectors of the index are asked for at least and at most, and how many times as many the next time."""
_KNOWN_S = 10.0
"""How long it is believed whether a namespace has an index, in seconds."""
_ROUNDING = 0.002
"""By how much the index may take a vector for farther away than it is."""


class Nearness(NamedTuple):
    """What is looked for: the states nearest to a vector, of a selection, by what a member of their values holds."""

    selection: Selection
    member: str
    vector: Vector
    limit: int


class Ranked(NamedTuple):
    """A record, and how near it is."""

    record: Record
    score: float


class _Index(NamedTuple):
    member: str
    dims: int


class Nearest:
    """Searches by nearness."""

    def __init__(self, keys: KeySpace, postgres: PostgresTier, listing: Listing) -> None:
        self._keys = keys
        self._postgres = postgres
        self._listing = listing
        self._known: dict[str, tuple[float, _Index | None]] = {}

    async def ranked(self, wanted: Nearness, *, seconds: float) -> list[Ranked]:
        """Return the nearest first; `seconds` bounds each exchange with a server."""
        prefix, shard = checked_prefix_of_list(wanted.selection.prefix, self._keys.shards)
        shards = range(self._keys.shards) if shard is None else [shard]
        namespace = prefix.partition("/")[0]
        while (index := await self._index(namespace, seconds)) is not None and index.member == wanted.member:
            if index.dims != (given := len(wanted.vector.numbers)):
                raise UsageError(f"the vectors of {namespace!r} have {index.dims} dimensions, and this one has {given}")
            found = await self._by_index(wanted, namespace, index, shards, seconds)
            if found is not None:
                return found
            self._known.pop(namespace, None)
        return await self._of_all(wanted, seconds)

    async def _index(self, namespace: str, seconds: float) -> _Index | None:
        until, index = self._known.get(namespace, (0.0, None))
        if monotonic() < until:
            return index
        try:
            rows = await self._postgres.fetch("vector_index", {"namespace": namespace}, seconds=seconds)
        except (ConfigurationError, PostgresUnavailable) as error:  # as of a schema of an earlier release
            if isinstance(error, PostgresUnavailable) and error.reason != "schema":
                raise
            rows = []
        index = _Index(*rows[0]) if rows else None
        self._known[namespace] = monotonic() + _KNOWN_S, index
        return index

    async def _by_index(
        self, wanted: Nearness, namespace: str, index: _Index, shards: Sequence[int], seconds: float
    ) -> list[Ranked] | None:
        """Return the nearest, or None where the index is there no more, or is another one."""
        listed, asked, begun = Listed(selection=wanted.selection), max(_ASKED_MIN, 2 * wanted.limit), boottime()
        overlay = await self._listing.overlay(listed, shards, seconds)
        parameters = {
            "namespace": namespace, "vector": wanted.vector.spelled(), "shards": [*shards], "waiting": COMPARED_MAX,
        }  # fmt: skip
        parameters |= wanted.selection.bounds()
        while True:
            names = "watermarks", "list_nearest", "vector_index"
            heads, rows, there = await self._postgres.fetch_each(names, parameters | {"limit": asked}, seconds=seconds)
            if [_Index(*row) for row in there] != [index]:
                return None
            watermarks = watermarks_of(heads)
            if overlay.lacking(watermarks):
                overlay = await self._listing.overlay(listed, shards, seconds, watermarks)
            given, farthest, waiting = rows[0][-3:]
            _refuse_too_many(waiting)
            held = [row[:-3] for row in rows if row[0] is not None]
            sights = await self._listing.everything(held, overlay, seconds)
            found = await self._ranks(wanted, sights.values(), seconds, begun)
            last = found[wanted.limit - 1].score if len(found) >= wanted.limit else -2.0
            if given < asked or asked >= _ASKED_MAX or last >= 1.0 - float(farthest) + _ROUNDING:
                return found[: wanted.limit]
            asked *= _GROWTH

    async def _of_all(self, wanted: Nearness, seconds: float) -> list[Ranked]:
        listed = Listed(selection=wanted.selection, limit=COMPARED_MAX + 1)
        sights = [one async for one in self._listing.sights(listed, seconds=seconds)]
        _refuse_too_many(len(sights))
        return _ranked(wanted, (one.record for one in sights))[: wanted.limit]

    async def _ranks(self, wanted: Nearness, sights: Iterable[Sight], seconds: float, begun: float) -> list[Ranked]:
        seen = [await self._listing.seen(one, seconds, begun) for one in sights]
        return _ranked(wanted, (one.record for one in seen if one.holds(wanted.selection.filter)))


def _ranked(wanted: Nearness, records: Iterable[Record]) -> list[Ranked]:
    scores: list[tuple[Record, Any]] = [(one, wanted.vector.nearness(one, wanted.member)) for one in records]
    found = [Ranked(record, score) for record, score in scores if score is not None]
    return sorted(found, key=lambda one: (-one.score, one.record.key))


def _refuse_too_many(count: int) -> None:
    if count > COMPARED_MAX:
        hint = (
            "Search under a longer prefix, or for members that equal something, or have the vectors of this namespace "
            "indexed: `statecache vectors create`. Where they are, its workers have not got so far yet."
        )
        raise LimitExceeded("the number of states to be compared", actual=count, limit=COMPARED_MAX, hint=hint)
