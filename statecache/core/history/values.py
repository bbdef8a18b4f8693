"""Values of changes, made again from what Postgres keeps of them: see `statecache.history` for the forms.

Any version is one range of the index, from its keyframe on. A branch begins with a delta to its origin in another key:
that is read first, and what that one begins from, and so on, `ORIGINS_MAX` at most. A value that is what its own digest
says is right, whatever the digests of those that it is a delta to say. Where it is not, the error also names the first
of them whose digest does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class Base(NamedTuple):
    """What another value is a delta to: its bytes, as far as there are any, and why they may be wrong."""

    value: bytes | None
    damage: HistoryDamaged | None = None


_NOTHING = Base(None)
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
        bases = await self._bases(list(origins.values()), end) if origins else {}
        for place, (chain, origin) in chains.items():
            found[place] = _restored(place, chain, _NOTHING if origin is None else bases.get(origin, _NOTHING))
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
        bases = await self._bases(origins, end) if origins else {}
        found: dict[int, Base] = {}
        for row in rows:
            stored = _stored((0, key, *row))
            origin = _NOTHING if row[5] is None else bases.get(VersionAt(row[5], row[6]), _NOTHING)
            before = found.get(stored.version - 1, _NOTHING) if is_delta(stored.packed) else _NOTHING
            place = VersionAt(key, stored.version)
            if stored.version < first:  # it is not asked for
                found[stored.version] = _base(place, [stored], origin, before)
            else:
                found[stored.version] = Base(_restored(place, [stored], origin, before))
        return {version: base.value for version, base in found.items() if version >= first}

    async def bases(self, asked: Sequence[VersionAt], *, seconds: float) -> dict[VersionAt, Base]:
        """Return what others are deltas to, as far as these are there, damaged or not.

        Raises PostgresUnavailable past `seconds`.
        """
        return await self._bases(asked, monotonic() + seconds)

    async def _chains(self, asked: Sequence[VersionAt], end: float) -> _Chains:
        chains: _Chains = {}
        for start in range(0, len(asked), VERSIONS_MAX):
            some = asked[start : start + VERSIONS_MAX]
            columns = {"keys": [one.key for one in some], "versions": [one.version for one in some]}
            left = max(end - monotonic(), 0.001)
            chains |= _chains_of(some, await self._fetch("history_values", columns, seconds=left))
        return chains

    async def _bases(self, asked: Sequence[VersionAt], end: float) -> dict[VersionAt, Base]:
        """Return the values from which branches began; each may lie in a branch itself."""
        read: _Chains = {}
        wanted = list(dict.fromkeys(asked))
        for _ in range(ORIGINS_MAX):
            read |= await self._chains(wanted, end)
            ahead = (read[one][1] for one in wanted if one in read)
            wanted = [one for one in dict.fromkeys(ahead) if one is not None and one not in read]
            if not wanted:
                break
        return _bases_of(read)


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


def _bases_of(read: _Chains) -> dict[VersionAt, Base]:
    """Return the values of what was read, each behind that from which it began: that may be among these as well."""
    bases: dict[VersionAt, Base] = {}

    def base_of(place: VersionAt | None) -> Base:
        if place is not None and place in read and place not in bases:
            bases[place] = _NOTHING  # for a reference that leads back to where it begins
            chain, origin = read[place]
            bases[place] = _base(place, chain, base_of(origin))
        return _NOTHING if place is None else bases.get(place, _NOTHING)

    for one in read:
        base_of(one)
    return bases


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


def _base(place: VersionAt, chain: Sequence[Stored], origin: Base, before: Base = _NOTHING) -> Base:
    """Return a version for those that build on it, whose digests are compared: its own alone may be what is wrong."""
    try:
        return Base(_restored(place, chain, origin, before))
    except HistoryDamaged as error:
        damage = origin.damage or before.damage or error
        unproven = [*chain[:-1], *(one._replace(digest=None) for one in chain[-1:])]
        try:
            return Base(restored(unproven, origin=origin.value, before=before.value), damage)
        except (NotKept, Damage):
            return Base(None, damage)


def _restored(place: VersionAt, chain: Sequence[Stored], origin: Base, before: Base = _NOTHING) -> bytes | None:
    damage = origin.damage or before.damage
    try:
        value = restored(chain, origin=origin.value, before=before.value)
        if damage is not None and chain[-1].value is None and chain[-1].digest is None:
            raise Damage("it has no digest")
    except NotKept:
        return None
    except Damage as error:
        why = str(error)
        if damage is not None:
            why = f"version {damage.version} of {damage.key!r}, which it is made from, is damaged: {damage.reason}"
        raise HistoryDamaged(place.key, place.version, reason=why) from error
    return value
