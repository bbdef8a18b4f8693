"""Reading history: which versions a key had, which one was the newest at a point, and what it held.

    Postgres   holds what is flushed. A version that it holds never changes: where it can answer, nothing else is asked
    stream     holds what is not: it is asked where the answer may lie behind the watermark (`tail`)

A point is a version of the key, a position of its shard, or a moment by the clock of Redis. A position is of its
epoch's lineage: where a later one began before it, it was lost, and its n belongs to something else. At a point a key's
version is its newest change of the current lineage that is no later. As n orders a shard, a position is one consistent
point of all keys of a group. A moment is looked up in what the changes say of themselves: where a clock went back, the
newest version counts that is no later, and of a group its position (`targets.group_at`). Nothing is known of a position
behind the newest one, nor of a moment to come.

Where versions of a key are missing from its chain, what it held meanwhile is not known (`gaps`): nothing older stands
in for them.

What is not flushed may still fork. Where it is not known, for a gate is closed or too much is waiting,
HistoryIncomplete says so; what was given before it is true.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.core.history.gaps import Gap, asked_of, gap_of, missing_of_row
from statecache.core.history.hashes import proven_by_key, proven_until_damaged
from statecache.core.history.tail import Tail
from statecache.core.history.values import VersionAt
from statecache.core.read.absences import no_row
from statecache.core.read.listed import Watermark
from statecache.errors import RedisUnavailable
from statecache.history_errors import HistoryIncomplete, VersionNotFound
from statecache.keys import beyond_prefix, group_of
from statecache.rules.versions import Version, at_moment, version_of_row

if TYPE_CHECKING:
    from statecache.core.history.tail import Tails
    from statecache.core.history.values import HistoryValues
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.model import Position

_Page = tuple[Watermark, Sequence[Sequence[Any]]]
PAGE = 500
"""How many versions are read at once."""
VALUES_BYTES_MAX = 16 * 1024 * 1024
"""Up to how many bytes of values are read at once, and the one that exceeds it."""
VERSION_MAX = 2**63 - 1
AHEAD_S = 1.0
"""For a moment so far ahead of Redis' clock, as that of a caller's machine may be, it is waited."""
_NEAREST_S = 1.0
"""For how long it is looked among what is not flushed for the version next to one that is not there."""


class Point(NamedTuple):
    """A point in a key's or a group's history: what is no later than all of these.

    With an epoch, n is a place in that epoch's lineage: it means nothing in another one.
    """

    version: int = VERSION_MAX
    n: int = VERSION_MAX
    time: datetime | None = None
    epoch: int | None = None

    @classmethod
    def at(cls, position: Position) -> Point:
        """Return the point that a position is."""
        return cls(n=position.n, epoch=position.epoch)

    def reached(self, one: Version) -> bool:
        """Whether a change is no later than the point."""
        return one.version <= self.version and one.position.n <= self.n and (self.time is None or one.at <= self.time)

    def __str__(self) -> str:
        if self.version != VERSION_MAX:
            return f"version {self.version}"
        return "version" if self == Point() else f"change up to {self._place}"

    @property
    def moment(self) -> str:
        """What is asked for at the point: a version, or the state at that time."""
        if self.version != VERSION_MAX:
            return str(self)
        return "current state" if self == Point() else f"state at {self._place}"

    @property
    def _place(self) -> str:
        if self.time is not None:
            return self.time.isoformat()
        return f"n {self.n}" if self.epoch is None else f"position {self.epoch}-{self.n}"


class Seen(NamedTuple):
    """What Postgres says of one moment: how far it holds a shard, and of its keys what was newest at a point.

    By key also the newest version, and those that are missing behind the one that was newest then.
    """

    mark: Watermark
    found: dict[str, Version]
    newest: dict[str, int]
    gaps: dict[str, Gap]
    cut: int | None = None
    """The lowest n at which an epoch began that is later than the point's; None where there is none, or it has none."""
    epoch: int | None = None
    """The epoch of the commit at the point's n; None where Postgres holds none."""


class HistoryReader:
    """The reading of what keys held."""

    def __init__(
        self, keys: KeySpace, redis: RedisTier, postgres: PostgresTier, values: HistoryValues, tails: Tails
    ) -> None:
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._values = values
        self._tails = tails

    async def version_at(self, key: str, point: Point, *, as_bound: bool = False, end: float) -> Version:
        """Return the newest version of a key that is no later than a point.

        Raises VersionNotFound where there is none, where versions are missing that may be later, and for a point that
        is yet to come; `as_bound` of a listing it is what there is. Raises HistoryIncomplete where it cannot be known,
        and PostgresUnavailable past `end`.
        """
        backoff = Backoff(0.005, 0.25)
        while True:
            seen = await self._at(key, point, end, whole=False)
            best, newest = seen.found.get(key), seen.newest.get(key, 0)
            gap = None if as_bound else seen.gaps.get(key)
            await self._refuse_lost(key, point, seen, end)
            if best is not None and self._settles(best, point, seen.mark, newest):
                return await self._wanted(key, point, best, gap, end)
            if not as_bound:
                await self._reach(key, point, end)
            tail = await self._tail(seen.mark, key, end)
            ahead = [one for one in tail.versions if one.key == key and one.version > newest]
            later = next((one for one in reversed(ahead) if point.reached(one)), None)
            best, gap = (best, gap) if later is None else (later, None)
            if not tail.lacking or (best is not None and best.version == point.version):
                await self._refuse_beyond(key, point, seen.mark, tail, end)
                return await self._wanted(key, point, best, gap, end)
            await self._again(key, tail, backoff, end)

    @staticmethod
    def _settles(best: Version, point: Point, mark: Watermark, newest: int) -> bool:
        """Whether what Postgres holds settles which version it was: a later one would be behind it."""
        return best.version == point.version or best.version < newest or point.n <= mark.flushed

    async def read_at(self, key: str, point: Point, *, end: float) -> tuple[Version, bytes]:
        """Return the newest version of a key that is no later than a point, and its value; that of a delete is empty.

        Raises as `version_at` and `value_of` do.
        """
        if 0 < point.version < VERSION_MAX:
            asked = self._asked(key, point, whole=False) | {"keys": [key], "versions": [point.version]}
            names = ("history_at", "history_values")
            rows, values = await self._postgres.fetch_each(names, asked, seconds=max(end - monotonic(), 0.001))
            found = proven_by_key(rows).get(key)
            if found is not None and found.version == point.version:
                place = VersionAt(key, found.version)
                seconds = max(end - monotonic(), 0.001)
                read = await self._values.of_rows(place, values, seconds=seconds) if found.op == "set" else b""
                return found, await self.value_of(found, end=end) if read is None else read
        found = await self.version_at(key, point, end=end)
        return found, await self.value_of(found, end=end)

    async def _wanted(self, key: str, point: Point, best: Version | None, gap: Gap | None, end: float) -> Version:
        if best is not None and point.version == best.version:
            return best
        if gap is not None and (point.version == VERSION_MAX or point.version <= gap.last):
            await self._refuse_unknown(point, [gap], end)
        if best is not None and point.version == VERSION_MAX:
            return at_moment(best, point.time)
        near = point.version if point.version != VERSION_MAX else 0
        nearest = await self._nearest(key, near, end)
        old = "nothing was ever written there" if point == Point() else "nothing of it is that old"
        why = old if best is None else f"its newest is version {best.version}"
        raise VersionNotFound(key, wanted=str(point), reason=why, nearest=nearest)

    async def _refuse_unknown(self, point: Point, gaps: Sequence[Gap], end: float) -> None:
        """Raise VersionNotFound where a version that is missing may have been current at a point."""
        if not gaps:
            return
        asked = {"shard": self._keys.shard(gaps[0].key), **asked_of(gaps)}
        for row in await self._postgres.fetch("history_gaps", asked, seconds=max(end - monotonic(), 0.001)):
            one = missing_of_row(row)
            if point.n >= one.begins and (point.time is None or one.before is None or one.before <= point.time):
                near = one.gap.first - 1 if point.version == VERSION_MAX else point.version
                nearest = await self._nearest(one.gap.key, near, end)
                raise VersionNotFound(one.gap.key, wanted=point.moment, reason=one.why, nearest=nearest)

    async def _refuse_lost(self, key: str, point: Point, seen: Seen, end: float) -> None:
        """Raise VersionNotFound for a position of another lineage than that which Postgres goes on with."""
        if point.epoch is None:
            return
        if point.epoch > seen.mark.epoch:
            reason = f"there was no epoch {point.epoch} of its shard"
        elif seen.cut is not None and seen.cut < point.n:
            reason = f"that was lost, for a later epoch began behind n {seen.cut}"
        elif seen.epoch not in (None, point.epoch):
            reason = f"what was committed there is of epoch {seen.epoch}"
        else:
            return
        best = seen.found.get(key)
        nearest = await self._nearest(key, VERSION_MAX if best is None else best.version, end)
        raise VersionNotFound(key, wanted=point.moment, reason=reason, nearest=nearest)

    async def _reach(self, key: str, point: Point, end: float) -> None:
        """Wait for a moment that comes soon, by Redis' clock; raise VersionNotFound for one that does not."""
        while point.time is not None:
            ahead_s = point.time.timestamp() - self._redis.clock.now_ms() / 1000
            if ahead_s < 0:
                return
            if ahead_s > AHEAD_S or monotonic() + ahead_s > end:
                nearest = await self._nearest(key, VERSION_MAX, end)
                raise VersionNotFound(key, wanted=point.moment, reason="that is yet to come", nearest=nearest)
            await self._redis.io.sleep(ahead_s + 0.001)

    async def _refuse_beyond(self, key: str, point: Point, mark: Watermark, tail: Tail, end: float) -> None:
        """Raise VersionNotFound for a position behind the newest one of its shard."""
        if not tail.lacking and tail.newest < point.n < VERSION_MAX:
            reason = f"the newest commit of its shard is {mark.epoch}-{tail.newest}"
            nearest = await self._nearest(key, VERSION_MAX, end)
            raise VersionNotFound(key, wanted=point.moment, reason=reason, nearest=nearest)

    async def _nearest(self, key: str, version: int, end: float) -> int | None:
        """Return the version next to one that has a value; what is not flushed comes behind all that is."""
        asked = {"key": key, "version": version}
        rows = await self._postgres.fetch("history_nearest", asked, seconds=max(end - monotonic(), 0.001))
        near = [row[0] for row in rows]
        if not any(one > version for one in near):
            with suppress(HistoryIncomplete):
                ahead = await self._ahead(key, min(end, monotonic() + _NEAREST_S))
                near += [one.version for one in ahead if one.op == "set"]
        return min(near, key=lambda one: abs(one - version), default=None)

    async def value_of(self, version: Version, *, end: float) -> bytes:
        """Return the value of a version as it was stored.

        Raises VersionNotFound where it is no longer kept, HistoryDamaged where what is kept does not give it.
        """
        (value,) = await self.values_of([version], end=end)
        if value is not None:
            return value
        nearest = await self._nearest(version.key, version.version, end)
        wanted, why = f"version {version.version}", "its value is no longer kept"
        raise VersionNotFound(version.key, wanted=wanted, reason=why, nearest=nearest)

    async def values_of(self, versions: Sequence[Version], *, end: float) -> list[bytes | None]:
        """Return the values of versions, None where one is no longer kept; that of a delete is empty."""
        asked = [VersionAt(one.key, one.version) for one in versions if one.durable and one.op == "set"]
        read = await self._values.read(asked, seconds=max(end - monotonic(), 0.001)) if asked else {}
        return [_value(one, read.get(VersionAt(one.key, one.version))) for one in versions]

    async def values_between(self, versions: Sequence[Version], *, end: float) -> AsyncIterator[list[bytes | None]]:
        """Yield the values of successive versions of one key, in order or from the newest on, some at a time."""
        some: list[Version] = []
        for at, one in enumerate(versions, 1):
            some.append(one)
            if at == len(versions) or sum(each.size for each in some) > VALUES_BYTES_MAX:
                durable = [each.version for each in some if each.durable]
                read: dict[int, bytes | None] = {}
                if durable:
                    seconds = max(end - monotonic(), 0.001)
                    read = await self._values.read_range(one.key, min(durable), max(durable), seconds=seconds)
                yield [_value(each, read.get(each.version)) for each in some]
                some = []

    async def keys_at(self, group: str, point: Point, *, as_bound: bool = False, end: float) -> list[Version]:
        """Return the newest version of each key of a group that is no later than a point, sorted by key.

        Raises VersionNotFound for a key of which versions are missing that may be later, but for those `as_bound` of a
        listing, and for a point yet to come; HistoryIncomplete where it is not known, PostgresUnavailable past `end`.
        """
        backoff = Backoff(0.005, 0.25)
        while True:
            seen = await self._at(group, point, end, whole=True)
            mark, found, newest, gaps, *_ = seen
            await self._refuse_lost(group, point, seen, end)
            if point.n > mark.flushed:
                await self._reach(group, point, end)
                tail = await self._tail(mark, group, end)
                for one in tail.versions:
                    if one.version > newest.get(one.key, 0) and point.reached(one):
                        found[one.key] = one
                        gaps.pop(one.key, None)
                if tail.lacking:
                    await self._again(group, tail, backoff, end)
                    continue
                await self._refuse_beyond(group, point, mark, tail, end)
            await self._refuse_unknown(point, [] if as_bound else [*gaps.values()], end)
            return [at_moment(found[key], point.time) for key in sorted(found)]

    async def versions(
        self,
        key: str,
        *,
        first: int = 1,
        last: int = VERSION_MAX,
        reverse: bool = False,
        unflushed: bool = True,
        proven: bool = True,
        seconds: float,
    ) -> AsyncIterator[list[Version]]:
        """Yield pages of a key's versions, in order or from the newest on; each has that many seconds.

        Raises HistoryIncomplete where what is not flushed cannot be known: behind all that Postgres holds, or, from the
        newest on, at once; and with `proven` HistoryDamaged for a row that does not fit its hash, behind those before.
        """
        if reverse:
            ahead = await self._ahead(key, monotonic() + seconds) if unflushed else []
            yield [one for one in reversed(ahead) if first <= one.version <= last]
            last = min(last, ahead[0].version - 1) if ahead else last
        backoff, end = Backoff(0.005, 0.25), monotonic() + seconds
        while first <= last:
            mark, rows = await self._page(key, first, last, end, down=reverse)
            page, damage = proven_until_damaged(rows) if proven else ([*map(version_of_row, rows)], None)
            yield page
            if damage is not None:
                raise damage
            if page:
                first, last = (first, page[-1].version - 1) if reverse else (page[-1].version + 1, last)
                end = monotonic() + seconds
            if len(page) == PAGE:
                continue
            if reverse or not unflushed or first > last:
                return
            tail = await self._tail(mark, key, end)
            if not tail.lacking:
                yield [one for one in tail.versions if one.key == key and first <= one.version <= last]
                return
            await self._again(key, tail, backoff, end)

    async def _ahead(self, key: str, end: float) -> list[Version]:
        """Return the versions of a key that Postgres does not hold, in order."""
        backoff = Backoff(0.005, 0.25)
        while True:
            mark, tip = await self._page(key, 1, VERSION_MAX, end, down=True, limit=1)
            tail = await self._tail(mark, key, end)
            if not tail.lacking:
                held = tip[0][2] if tip else 0
                return [one for one in tail.versions if one.key == key and one.version > held]
            await self._again(key, tail, backoff, end)

    async def _again(self, key: str, tail: Tail, backoff: Backoff, end: float) -> None:
        """Wait a moment before all is read anew; raise HistoryIncomplete where that is of no use."""
        if not tail.anew or backoff.outlasts(end):
            raise HistoryIncomplete(key, reason=tail.lacking)
        await self._redis.io.sleep(backoff.take())

    async def _page(self, key: str, first: int, last: int, end: float, *, down: bool, limit: int = PAGE) -> _Page:
        asked = {"key": key, "shard": self._keys.shard(key), "first": first, "last": last, "down": down, "limit": limit}
        rows = await self._postgres.fetch("history_versions", asked, seconds=max(end - monotonic(), 0.001))
        return _mark(rows, asked), sorted((row for row in rows if row[2] is not None), key=itemgetter(2), reverse=down)

    async def _at(self, key: str, point: Point, end: float, *, whole: bool) -> Seen:
        asked, names, seconds = self._asked(key, point, whole=whole), ["history_at"], max(end - monotonic(), 0.001)
        if point.epoch is not None:
            names, asked = [*names, "position_lineage"], asked | {"epoch": point.epoch}
        rows, *lineage = await self._postgres.fetch_each(names, asked, seconds=seconds)
        cut, epoch = lineage[0][0] if lineage else (None, None)
        found, there = proven_by_key(rows), [row for row in rows if row[17] is not None]
        gaps = (gap_of(row[17], found.get(row[17]), row[19], row[18]) for row in there)
        newest = {row[17]: row[18] for row in there}
        return Seen(_mark(rows, asked), found, newest, {gap.key: gap for gap in gaps if gap is not None}, cut, epoch)

    def _asked(self, key: str, point: Point, *, whole: bool) -> dict[str, Any]:
        return {
            "key": key, "shard": self._keys.shard(key), "whole": whole, "beyond": beyond_prefix(key + "/"),
            "version": point.version, "n": point.n, "time": point.time or "infinity",
        }  # fmt: skip

    async def _tail(self, mark: Watermark, key: str, end: float) -> Tail:
        seconds = max(end - monotonic(), 0.001)
        try:
            return await self._tails.behind(mark, self._keys.shard(key), group_of(key), seconds=seconds)
        except RedisUnavailable as error:
            return Tail([], f"Redis cannot be asked for what is not flushed: {error}")


def _mark(rows: Sequence[Sequence[Any]], asked: dict[str, Any]) -> Watermark:
    if (row := next((row for row in rows if row[1] is not None), None)) is None:
        raise no_row(asked["shard"])
    return Watermark(row[0], row[1])


def _value(version: Version, read: bytes | None) -> bytes | None:
    if version.op != "set":
        return b""
    return read if version.unflushed is None else version.unflushed
