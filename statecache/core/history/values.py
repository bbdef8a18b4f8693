"""Values of changes, made again from what Postgres keeps of them: see `statecache.history` for the forms.

Any version is one range of the index, from its keyframe on. A branch begins with a delta to its origin in another key:
that is read first, and what that one begins from, and so on, `ORIGINS_MAX` at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from statecache.clock import monotonic
from statecache.history import Damage, NotKept, Stored, is_delta, needs_parent, restored, unpacked
from statecache.history_errors import HistoryDamaged

Row = Sequence[Any]


class Fetch(Protocol):
    """What gives the rows of a named statement, as `PostgresTier.fetch` does."""

    async def __call__(self, name: str, parameters: Mapping[str, Any], *, seconds: float) -> Sequence[Row]: ...


ORIGINS_MAX = 1000
"""How many branches may have begun one from another."""
VERSIONS_MAX = 64
"""How many versions are asked for at once."""
REMEMBERED_BYTES_MAX = 16 * 1024 * 1024
"""How many bytes of values a reader of successive changes keeps, so that the next deltas need nothing else."""


class VersionAt(NamedTuple):
    """One version of one key."""

    key: str
    version: int


Found = bytes | HistoryDamaged | None
"""A value, None where it is no longer kept, or why it cannot be read."""
_Chains = dict[VersionAt, tuple[list[Stored], VersionAt | None]]
"""Of each version what is kept from its keyframe on, and from where that began as a branch."""


class HistoryValues:
    """The values of changes, as Postgres keeps them."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def read(self, asked: Sequence[VersionAt], *, seconds: float) -> dict[VersionAt, bytes | None]:
        """Return the values of these versions, as far as their changes are there; None for one that is no longer kept.

        Raises HistoryDamaged for the first that what is kept does not give, and PostgresUnavailable past `seconds`.
        """
        end = monotonic() + seconds
        try:
            return await self._read(asked, end)
        except HistoryDamaged:  # or an origin was erased between a branch and it, which has its own value by now
            return await self._read(asked, end)

    async def of_rows(self, place: VersionAt, rows: Sequence[Row], *, seconds: float) -> bytes | None:
        """Return the value of a version from what `history_values` has given of it; None if it is no longer kept.

        Raises as `read` does.
        """
        end = monotonic() + seconds
        try:
            found = await self._values(_chains_of([place], rows), end)
        except HistoryDamaged:  # as in `read`
            found = await self._read([place], end)
        return found.get(place)

    async def _read(self, asked: Sequence[VersionAt], end: float) -> dict[VersionAt, bytes | None]:
        return await self._values(await self._chains(list(dict.fromkeys(asked)), end), end)

    async def _values(self, chains: _Chains, end: float) -> dict[VersionAt, bytes | None]:
        found: dict[VersionAt, bytes | None] = {}
        origins = {place: origin for place, (_, origin) in chains.items() if origin is not None}
        values = await self._origins(list(origins.values()), end) if origins else {}
        for place, (chain, origin) in chains.items():
            found[place] = _restored(place, chain, None if origin is None else values.get(origin))
        return found

    async def read_range(self, key: str, first: int, last: int, *, seconds: float) -> dict[int, bytes | None]:
        """Return the values of a key's versions between two, as far as they are there; None for one no longer kept.

        Raises as `read` does.
        """
        end = monotonic() + seconds
        try:
            return await self._read_range(key, first, last, end)
        except HistoryDamaged:
            return await self._read_range(key, first, last, end)

    async def _read_range(self, key: str, first: int, last: int, end: float) -> dict[int, bytes | None]:
        asked = {"key": key, "first": first, "last": last}
        rows = await self._fetch("history_range", asked, seconds=max(end - monotonic(), 0.001))
        origins = [VersionAt(row[5], row[6]) for row in rows if row[5] is not None]
        begun = await self._origins(origins, end) if origins else {}
        found: dict[int, bytes | None] = {}
        for row in rows:
            stored = _stored((0, key, *row))
            origin = None if row[5] is None else begun.get(VersionAt(row[5], row[6]))
            before = found.get(stored.version - 1)
            if stored.version >= first:
                found[stored.version] = _restored(VersionAt(key, stored.version), [stored], origin, before)
                continue
            with suppress(HistoryDamaged):  # it is not asked for: those that build on it are compared
                unproven = [stored._replace(digest=None)]
                found[stored.version] = _restored(VersionAt(key, stored.version), unproven, origin, before)
        return {version: value for version, value in found.items() if version >= first}

    async def _chains(self, asked: Sequence[VersionAt], end: float) -> _Chains:
        chains: _Chains = {}
        for start in range(0, len(asked), VERSIONS_MAX):
            some = asked[start : start + VERSIONS_MAX]
            columns = {"keys": [one.key for one in some], "versions": [one.version for one in some]}
            left = max(end - monotonic(), 0.001)
            chains |= _chains_of(some, await self._fetch("history_values", columns, seconds=left))
        return chains

    async def _origins(self, asked: Sequence[VersionAt], end: float) -> dict[VersionAt, bytes | None]:
        """Return the values from which branches began; each may lie in a branch itself."""
        read: _Chains = {}
        wanted = list(dict.fromkeys(asked))
        for _ in range(ORIGINS_MAX):
            read |= await self._chains(wanted, end)
            ahead = (read[one][1] for one in wanted if one in read)
            wanted = [one for one in dict.fromkeys(ahead) if one is not None and one not in read]
            if not wanted:
                break
        return _values_of(read)


class SuccessiveValues:
    """The values of changes that come in the order of their versions, as a feed gives them: each key's last is kept."""

    def __init__(self, values: HistoryValues) -> None:
        self._values = values
        self._last: dict[str, tuple[int, bytes | None]] = {}
        self._bytes = 0

    async def of(self, changes: Sequence[tuple[str, Stored]], *, seconds: float) -> list[Found]:
        """Return the values of changes of these keys, None for one that is no longer kept, or why one cannot be read.

        Raises PostgresUnavailable past `seconds`.
        """
        lacking, end = self._lacking(changes), monotonic() + seconds
        read = await self._each(lacking, end) if lacking else {}
        values: list[Found] = []
        for key, stored in changes:
            place = VersionAt(key, stored.version)
            found = read[place] if place in read else self._next(place, stored)
            if isinstance(found, HistoryDamaged) and place not in read:  # or what it is a delta to has gone meanwhile
                found = (await self._each([place], end))[place]
            values.append(found)
            value = None if isinstance(found, HistoryDamaged) else found
            before = self._last.pop(key, (0, None))[1]
            self._last[key] = stored.version, value
            self._bytes += len(value or b"") - len(before or b"")
        while self._bytes > REMEMBERED_BYTES_MAX:
            self._bytes -= len(self._last.pop(next(iter(self._last)))[1] or b"")
        return values

    async def _each(self, places: Sequence[VersionAt], end: float) -> dict[VersionAt, Found]:
        """Return what is read of these, or why it cannot be; those that are damaged are found by halving."""
        try:
            return {**await self._values.read(places, seconds=max(end - monotonic(), 0.001))}
        except HistoryDamaged as error:
            if len(places) == 1:
                return {places[0]: error}
            half = len(places) // 2
            return await self._each(places[:half], end) | await self._each(places[half:], end)

    def _lacking(self, changes: Sequence[tuple[str, Stored]]) -> list[VersionAt]:
        """Return which of them need more than what came and what is remembered."""
        lacking: list[VersionAt] = []
        have = {key: version for key, (version, value) in self._last.items() if value is not None}
        for key, stored in changes:
            alone = stored.value is not None or (stored.packed is not None and not needs_parent(stored.packed))
            if not alone and (not is_delta(stored.packed) or have.get(key) != stored.version - 1):
                lacking.append(VersionAt(key, stored.version))
            have[key] = stored.version
        return lacking

    def _next(self, place: VersionAt, stored: Stored) -> Found:
        if stored.value is not None:
            return stored.value
        try:
            return unpacked(stored.packed or b"", self._last.get(place.key, (0, None))[1])
        except Damage as error:
            return HistoryDamaged(place.key, place.version, reason=str(error))


def _values_of(read: _Chains) -> dict[VersionAt, bytes | None]:
    """Return the values of what was read, each behind that from which it began: that may be among these as well."""
    values: dict[VersionAt, bytes | None] = {}

    def value_of(place: VersionAt | None) -> bytes | None:
        if place is not None and place in read and place not in values:
            values[place] = None  # for a reference that leads back to where it begins
            chain, origin = read[place]
            values[place] = _restored(place, chain, value_of(origin))
        return None if place is None else values.get(place)

    for one in read:
        value_of(one)
    return values


def _chains_of(asked: Sequence[VersionAt], rows: Sequence[Row]) -> _Chains:
    chains: _Chains = {}
    for at, chain in groupby(rows, itemgetter(0)):
        kept = list(chain)
        origin = next((VersionAt(row[7], row[8]) for row in kept if row[7] is not None), None)
        chains[asked[at - 1]] = [_stored(row) for row in kept], origin
    return chains


def _stored(row: Row) -> Stored:
    _, _, version, value, packed, keyframe, digest, *_ = row
    return Stored(
        version,
        None if value is None else bytes(value),
        None if packed is None else bytes(packed),
        keyframe,
        None if digest is None else bytes(digest),
    )


def _restored(
    place: VersionAt, chain: Sequence[Stored], origin: bytes | None, before: bytes | None = None
) -> bytes | None:
    try:
        return restored(chain, origin=origin, before=before)
    except NotKept:
        return None
    except Damage as error:
        raise HistoryDamaged(place.key, place.version, reason=str(error)) from error
