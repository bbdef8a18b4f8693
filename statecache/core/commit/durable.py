"""Waiting until Postgres holds a change, and asking what became of one.

The shards' events tell of their watermarks (`<epoch> <flushed n> <excepted n>`); waiters subscribe before they
commit, are woken when the watermark passes their position, and look for themselves every second, for an event may be
lost. Same epoch, n at or below the watermark and no exception at or above n: durable. Anything else (a change of
epoch, an exception) is settled by asking Postgres for the change_id. So is whatever was not committed just now, for
Postgres may have gone back since it was flushed, and Redis does not know of that yet:

    in change       durable
    in conflict     Forked
    in quarantine   Quarantined
    of a branch     Forked; to its own writer the same as nowhere, once it has found the server that goes on
    nowhere, and a later epoch began before its n       the commit was lost with its Redis; it may be applied again
    nowhere, or in part, and the watermark is past it   its entry had left the stream, and it could not be rebuilt
                    whole: it is lost, and never applied again, for what came later may build on it
    nowhere, and Redis remembers that more was flushed than Postgres holds   it is not known: Postgres went back, and
                    may have held it
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol
from weakref import ref

import msgspec

from statecache.clock import monotonic
from statecache.commit_protocol.answers import Found, found_in
from statecache.core.history.values import HistoryValues, VersionAt
from statecache.core.read.listed import BEHIND, UNKNOWN, Watermark, flushed_in
from statecache.errors import (
    ChangeIdReused,
    ConfigurationError,
    Forked,
    Lost,
    OutcomeUnknown,
    PostgresUnavailable,
    Quarantined,
    Unavailable,
)
from statecache.model import ChangeRecord, Position
from statecache.records import text_of
from statecache.redis_errors import refusal
from statecache.rules.outcomes import Content, Recorded, fate_of

if TYPE_CHECKING:
    from statecache.concurrency import Signal
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.pubsub import Subscriptions
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.resp import Command

HELD = 0
"""Stands for a change that Postgres holds."""
PASSED = -1
"""Stands for a change of which Postgres, which has passed it in its lineage, does not hold the commit whole."""
PART = -2
"""Stands for such a change where Postgres holds it, and not the others of its commit."""
NOWHERE = Position(0, 0)
"""Stands for a position that is not known, which no epoch has ended."""
_BETWEEN = "it was applied at {}, its entry has left the stream, and Postgres has not come that far"
Ask = Literal["if doubtful", "unless it is away", "always"]
"""When Postgres itself has to say that it holds a change which the watermark has passed."""
_WATCH_S, _WATCH_PART = 2.0, 4
"""How long a call waits for its subscription at most, in seconds, and what part of its time."""
_LOOK_S = 1.0
_DOUBT_S = 2.0
"""After how many seconds a waiter whose watermark does not move asks Postgres; then after twice as many each time."""
_PAGE = 1000


class _Mark(msgspec.Struct, frozen=True):
    """A shard's watermark as last heard."""

    epoch: int
    flushed: int
    excepted: int


class Listener(Protocol):
    """Whoever is told that watermarks move, as long as somebody has it."""

    def moved(self, shard: int) -> None:
        """Take note of an event of a shard, in whatever task or thread hears it: be quick."""


class Durable:
    """The watermarks of the shards that this client waits for, or that somebody follows."""

    def __init__(self, keys: KeySpace, redis: RedisTier, postgres: PostgresTier, events: Subscriptions) -> None:
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._events = events
        self._marks: dict[int, _Mark] = {}
        self._waiting: dict[int, list[tuple[int, Signal]]] = {}
        self._listeners: dict[int, tuple[ref[Listener], ...]] = {}

    async def watch(self, shard: int, *, end: float) -> None:
        """Listen to the shard's events, before the commit that will be waited for; little of its time goes into that.

        Where they are not heard by then, who waits looks for himself.
        """
        now = monotonic()
        end = now + min((end - now) / _WATCH_PART, _WATCH_S)
        await self._events.watch(self._keys.events(shard), partial(self.heard, shard), end=end)

    async def listen(self, shard: int, listener: Listener, *, end: float) -> bool:
        """Have the listener told of the shard's events; return whether they are heard, as far as is known."""
        known = [one for one in self._listeners.get(shard, ()) if one() is not None]
        if not any(one() is listener for one in known):  # another tuple, for another thread may go through this one
            self._listeners[shard] = (*known, ref(listener))
        await self.watch(shard, end=end)
        return self._events.listens(self._keys.events(shard))

    def heard(self, shard: int, message: bytes) -> None:
        """Tell those who listen of an event, and take note of it, if it is a watermark that somebody waits for."""
        for one in self._listeners.get(shard, ()):
            if (listener := one()) is not None:
                listener.moved(shard)
        if shard in self._waiting:
            with suppress(ValueError, TypeError):  # other events, and whatever somebody else may publish there
                epoch, flushed, excepted, *cluster = message.split()
                if not (cluster and self._redis.cluster):  # whose it is is not known: they look for themselves
                    self._wake(shard)
                elif cluster[0].decode() == self._redis.cluster:
                    self._mark(shard, _Mark(int(epoch), int(flushed), int(excepted)))

    def _mark(self, shard: int, mark: _Mark) -> None:
        """Note a watermark, forward only: what was looked up may be older than what was heard meanwhile."""
        known = self._marks.get(shard)
        if known is not None and known.epoch == mark.epoch:
            mark = _Mark(mark.epoch, max(known.flushed, mark.flushed), max(known.excepted, mark.excepted))
        self._marks[shard] = mark
        self._wake(shard, mark.flushed)

    def _wake(self, shard: int, flushed: int | None = None) -> None:
        """Wake those who wait for a position up to a watermark, or all."""
        for n, signal in list(self._waiting.get(shard, ())):
            if flushed is None or flushed >= n:
                signal.set()

    async def wait(
        self, shard: int, position: Position, change_id: str, keys: Sequence[str], *, end: float,
        ask: Ask = "if doubtful",
    ) -> int:  # fmt: skip
        """Return HELD when Postgres holds the change, or the epoch that began without it: it may be applied again.

        PASSED and PART say that it is lost in its own lineage, where it was applied, and where it must not be again.
        For a change that was committed just now the watermark is proof enough; one from before Postgres itself has to
        vouch for, which may have gone back since: `ask` says when. Raises Forked or Quarantined, and
        OutcomeUnknown(change_id) past `end`, which does not mean that it failed.
        """
        signal = self._redis.io.signal()
        pause, doubted = _DOUBT_S, monotonic() + _DOUBT_S
        ticket = (position.n, signal)
        self._waiting.setdefault(shard, []).append(ticket)
        try:
            if not self._hears(shard) and self._passed(shard, position) is False:
                await self._look(shard, min(max(end - monotonic(), 0.01), _LOOK_S))
            while True:
                settled = await self._settle(shard, position, change_id, keys, end, ask)
                if settled is not None:
                    return settled
                left = end - monotonic()
                if left <= 0:
                    raise OutcomeUnknown(change_id, keys=tuple(keys), reason=OutcomeUnknown.awaited)
                if not await signal.wait(min(left, _LOOK_S)):
                    await self._look(shard, min(max(end - monotonic(), 0.01), _LOOK_S))
                    if monotonic() > doubted:
                        await self._refuse_kept(shard, position, change_id, keys, end)
                        pause *= 2
                        doubted = monotonic() + pause
                elif (passed := self._passed(shard, position)) is not True or ask != "if doubtful":
                    await self._redis.io.sleep(min(left, 0.05))
                    if passed is False:  # woken by another epoch's mark than the one that stands now
                        await self._look(shard, min(max(end - monotonic(), 0.01), _LOOK_S))
        finally:
            self._waiting[shard].remove(ticket)

    def _hears(self, shard: int) -> bool:
        """Return whether the shard's events were heard before the commit, so that the one about it is not missed."""
        return shard in self._marks and self._events.listens(self._keys.events(shard))

    def _passed(self, shard: int, position: Position) -> bool | None:
        """Return whether the watermark makes the position durable; None where only Postgres can tell."""
        mark = self._marks.get(shard)
        if mark is None or (mark.epoch == position.epoch and mark.flushed < position.n):
            return False
        if mark.epoch == position.epoch and mark.excepted < position.n:
            return True
        return None

    async def _settle(
        self, shard: int, position: Position, change_id: str, keys: Sequence[str], end: float, ask: Ask
    ) -> int | None:
        passed, seconds = self._passed(shard, position), max(end - monotonic(), 0.01)
        if passed is False:
            return None
        if passed and ask == "if doubtful":
            return HELD
        enough = passed and ask == "unless it is away"
        try:
            rows = await self._ask(shard, change_id, position, min(seconds, _LOOK_S) if enough else seconds)
        except PostgresUnavailable:
            return HELD if enough else None
        if _taken_in(rows, change_id, keys):
            return HELD
        if ask != "if doubtful" and position in _branch(rows):
            raise Forked(keys[0], change_id)
        if any(row.found == "lost" and row.key in keys for row in rows):
            return PASSED
        if any(row.found == "part" for row in rows):
            return PART if _taken_in([*map(_held, rows)], change_id, keys) else PASSED
        ended = next((row.epoch for row in rows if row.found == "ended"), None)
        if ended is not None:
            return ended
        return PASSED if _is_passed(rows, position) else None

    async def _refuse_kept(
        self, shard: int, position: Position, change_id: str, keys: Sequence[str], end: float
    ) -> None:
        """Raise Forked where the change was kept of an old primary's branch: the watermark's copy there never moves."""
        with suppress(PostgresUnavailable):
            rows = await self._ask(shard, change_id, position, min(max(end - monotonic(), 0.01), _LOOK_S))
            if not _taken_in(rows, change_id, keys) and position in _branch(rows):
                raise Forked(keys[0], change_id)

    async def _look(self, shard: int, seconds: float) -> None:
        """Read the watermark's copy in Redis; where Redis is away, or refuses this user, have Postgres asked."""
        try:
            await self.watch(shard, end=monotonic() + seconds)
            reply = (
                await self._redis.exchange(
                    [("HMGET", self._keys.meta(shard), "epoch", "flushed", "excepted")], seconds=seconds
                )
            )[0]
        except (Unavailable, ConfigurationError):  # what is looked for may be in Postgres
            reply = None
        if isinstance(reply, list) and None not in reply:
            self._mark(shard, _Mark(*(int(part) for part in reply)))
        else:
            known = self._marks.get(shard, _Mark(-1, 0, 0))
            self._marks[shard] = _Mark(known.epoch + 1, known.flushed, known.excepted)

    async def _ask(self, shard: int, change_id: str, position: Position, seconds: float) -> list[Recorded]:
        asked = {"change_id": change_id, "shard": shard, "epoch": position.epoch, "n": position.n}
        return [Recorded(*row) for row in await self._postgres.fetch("lookup_change", asked, seconds=seconds)]

    async def moved(self, shard: int, change_id: str, key: str, position: Position, *, end: float) -> Position | None:
        """Return another position of a change in the stream, if its writer applied it again after a loss."""
        found = await self._in_stream(shard, change_id, [key], end)
        return found.position if found is not None and found.position != position else None

    async def lookup(
        self, shard: int, change_id: str, keys: Sequence[str], *, end: float, position: Position | None = None,
        parts: bool = False, certain: bool = False,
    ) -> Found | None:  # fmt: skip
        """Find an applied commit in the stream or in Postgres; return None where neither holds it.

        The stream is read first: what leaves it meanwhile is in Postgres by then. Raises Forked or Quarantined, and
        Lost where Postgres holds a part of it, or has passed the `position` at which it is known to be applied,
        OutcomeUnknown where it has yet to pass that, and ChangeIdReused where the change_id is that of a commit of only
        some of these keys. With `parts` a part is enough, if all of the keys are in it. With `certain` None says that
        it was not applied: OutcomeUnknown is raised where Postgres holds less than Redis remembers to be flushed.
        """
        found, flushed = await self._search(shard, change_id, keys, end)
        if found is not None:
            return found
        rows = await self._ask(shard, change_id, position or NOWHERE, max(end - monotonic(), 0.01))
        rows = [*map(_held, rows)] if parts else rows
        if not _taken_in(rows, change_id, keys):
            _refuse_lost(rows, change_id, keys, position)
            if position is not None and not any(row.found == "ended" for row in rows):
                raise OutcomeUnknown(change_id, keys=tuple(keys), reason=_BETWEEN.format(position))
            if certain and not _stands(rows).reaches(flushed):
                raise OutcomeUnknown(change_id, keys=tuple(keys), reason=BEHIND)
            return None
        by_key = {row.key: row for row in rows if row.found == "change"}
        mine = [by_key[key] for key in keys]
        return Found(
            Position(mine[0].epoch, mine[0].n), text_of(mine[0].at), tuple(row.version for row in mine),
            tuple(row.parent_change_id for row in mine),
            tuple(Content(row.op, row.digest or b"", row.encoding) for row in mine), in_stream=False,
        )  # fmt: skip

    async def change(self, shard: int, change_id: str, key: str, *, end: float) -> ChangeRecord | None:
        """Return one change of a key, from the stream or else from Postgres; None where neither keeps its value."""
        found = await self._in_stream(shard, change_id, [key], end)
        if found is not None:
            return found.changes[0]
        asked = {"change_id": change_id, "key": key, "shard": shard}
        for row in await self._postgres.fetch("change_of", asked, seconds=max(end - monotonic(), 0.01)):
            op, version, parent, encoding, schema = row
            value = b"" if op == "delete" else await self._value(VersionAt(key, version), end)
            if value is not None:
                return ChangeRecord(
                    change_id=change_id, key=key, op=op, version=version, parent_change_id=parent, value=value,
                    encoding=encoding, schema=schema,
                )  # fmt: skip
        return None

    async def _value(self, place: VersionAt, end: float) -> bytes | None:
        values = await HistoryValues(self._postgres.fetch).read([place], seconds=max(end - monotonic(), 0.01))
        return values.get(place)

    async def _in_stream(self, shard: int, change_id: str, keys: Sequence[str], end: float) -> Found | None:
        found, _ = await self._search(shard, change_id, keys, end)
        return found

    async def _search(
        self, shard: int, change_id: str, keys: Sequence[str], end: float
    ) -> tuple[Found | None, Watermark]:
        """Search the stream; return also how far Redis remembers that the shard is flushed.

        That is read behind each page, and so reaches whatever had left the stream before the page was read.
        """
        start, wanted = b"-", change_id.encode()
        changes, meta = self._keys.changes(shard), self._keys.meta(shard)
        while True:
            commands: list[Command] = [
                ("XRANGE", changes, start, b"+", "COUNT", _PAGE),
                ("HMGET", meta, "epoch", "flushed", "retired"),
            ]
            replies = await self._redis.read(commands, seconds=max(end - monotonic(), 0.01))
            for reply, redis_key in zip(replies, (changes, meta), strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, redis_key) from reply
            entries, head = replies
            flushed = flushed_in(*head)
            if not entries:
                return None, flushed
            for entry_id, raw in entries:
                if len(raw) > 3 and raw[3] == wanted and (found := found_in(entry_id, raw, keys)):
                    return found, flushed
            start = b"(" + entries[-1][0]


def _stands(rows: Sequence[Recorded]) -> Watermark:
    """Return how far Postgres holds the shard."""
    return next((Watermark(row.epoch, row.n) for row in rows if row.found == "shard"), UNKNOWN)


def _branch(rows: Sequence[Recorded]) -> list[Position]:
    """Return where the change stood in an old primary's branch, as far as that was kept."""
    return [Position(row.epoch, row.n) for row in rows if row.found == "branch"]


def _held(row: Recorded) -> Recorded:
    """Return the row with a part taken for a change."""
    return row._replace(found="change") if row.found == "part" else row


def _is_passed(rows: Sequence[Recorded], position: Position) -> bool:
    """Return whether the shard is flushed past a position, which its lineage has."""
    there = {row.found: row for row in rows}
    return "ended" not in there and "shard" in there and there["shard"].n >= position.n


def _refuse_lost(rows: Sequence[Recorded], change_id: str, keys: Sequence[str], position: Position | None) -> None:
    """Raise Lost for a commit that Postgres has passed without holding it whole, Forked if what stood there is kept.

    Of one that it holds whole, and that wrote only some of these keys, it raises ChangeIdReused.
    """
    gone = (row for row in rows if row.found == "part" or (row.found == "lost" and row.key in keys))
    part = next((Position(row.epoch, row.n) for row in gone), None)
    whole = {row.key: row for row in rows if row.found == "change"}
    known = next((whole[key] for key in keys if key in whole), None)
    if part is None and known is not None:
        raise ChangeIdReused(known.key, change_id, version=known.version)
    passed = position is not None and _is_passed(rows, position)
    if part is None and passed and position in _branch(rows):
        raise Forked(keys[0], change_id)
    if part is not None or passed:
        place = part or position or NOWHERE
        raise Lost(keys[0], change_id, position=place, epoch=place.epoch)


def _taken_in(rows: Sequence[Recorded], change_id: str, keys: Sequence[str]) -> bool:
    """Return whether Postgres holds the change at all of these keys; raise Forked or Quarantined if set aside."""
    fate = fate_of(rows, keys)
    if fate == "conflict":
        raise Forked(keys[0], change_id)
    if fate == "quarantine":
        raise Quarantined(keys[0], change_id)
    return fate == "change"
