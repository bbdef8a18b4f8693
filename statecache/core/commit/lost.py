"""Commits that were acknowledged and then lost: found, recorded in Postgres, told.

A position has died where a later epoch of its shard began before it: what was committed there went with its Redis,
unless its writer applied it again. Its number and its version are given to another commit. So whoever knows that a
position was reached tells Postgres, which keeps how far each lost tail came (`statecache lost`): a client does when the
answer to a commit shows that a new epoch has begun, when it meets a dead position, and when it closes. Its own commits
among the lost ones are logged, each once; so are those that are lost with their entry in the stream, which Postgres has
passed in their lineage without holding them whole. Of these it keeps change_id and keys too: what came later may build
on them, so a repeat must find that they were applied once, when the state and this client have forgotten it.

Without a fence nothing shows that a Redis came back without what was not flushed yet: no epoch begins, and the lost
positions are given out again. Only the change_ids differ. So there a client compares all of its own with what Postgres
holds, those of some hundred states at a time, once the watermark has passed them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.commit_protocol.in_flight import Acknowledged
from statecache.errors import StateCacheError
from statecache.model import LostCommit, Position
from statecache.settings import Settings, writer_of

if TYPE_CHECKING:
    from statecache.commit_protocol.in_flight import InFlight
    from statecache.core.postgres.tier import PostgresTier

LOST_MAX = 1000
"""How many lost commits are remembered as reported."""
_NOTICE_S = 0.25
"""How much longer the commit that meets a new epoch may take for it, in seconds."""
_AGAIN_S = 10.0
_PAGES = 2
"""How many times those of some hundred states are compared at most between two commits."""
_NAMED = 3
_logger = logging.getLogger("statecache")


class Losses:
    """The lost commits of one client."""

    def __init__(self, settings: Settings, postgres: PostgresTier, in_flight: InFlight) -> None:
        self._settings = settings
        self._postgres = postgres
        self._in_flight = in_flight
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget what a forked child's parent has lost."""
        self._mutex = mutex
        self._told: dict[str, Acknowledged] = {}
        self._not_before = 0.0

    @property
    def any_told(self) -> bool:
        """Whether any commit was found to be lost so far."""
        return bool(self._told)

    async def look(self, *, seconds: float) -> tuple[LostCommit, ...]:
        """Return the lost ones of the commits that this client remembers, and log those that are new."""
        end = monotonic() + seconds
        await self._compare(end)
        seconds = max(end - monotonic(), 0.001)
        recent = {one.change_id: one for one in (*self._told.values(), *self._in_flight.recent())}
        waited_for = self._in_flight.under_way
        ours = {change_id: one for change_id, one in recent.items() if change_id not in waited_for}
        tails = [Acknowledged(*tail, "", ()) for tail in self._in_flight.tails()]
        rows = await self.report([*ours.values(), *tails], seconds=seconds) if tails else []
        return self._told_of(rows, ours)

    async def report(self, positions: Iterable[Acknowledged], *, seconds: float) -> Sequence[tuple[Any, ...]]:
        """Tell Postgres that these positions were reached, and return those that have died."""
        return await self._postgres.fetch("report_lost", self._spread(positions), seconds=seconds)

    async def noticed(self, *, end: float) -> None:
        """Look for lost commits, as an answer has shown a new epoch, or compare them; a failure is not raised."""
        now, moved = monotonic(), self._in_flight.moved
        if now < self._not_before:
            return
        self._in_flight.moved = self._in_flight.due = False
        seconds = min(_NOTICE_S, max(end - now, 0.001))
        try:
            await (self.look(seconds=seconds) if moved else self._compare(now + seconds, pages=_PAGES))
        except StateCacheError as error:
            self._in_flight.moved, self._in_flight.due, self._not_before = moved, True, now + _AGAIN_S
            _logger.debug("what was lost is not known yet: %s", error)

    async def met(self, shard: int, position: Position, change_id: str, keys: Sequence[str], *, seconds: float) -> None:
        """Record a lost change that somebody asked for, at all of its keys that are known; a failure is only logged."""
        known = self._in_flight.acknowledged(change_id, keys[0])
        more = known.keys if known is not None and (known.epoch, known.n) == position else ()
        at = Acknowledged(shard, *position, change_id, tuple(dict.fromkeys((*keys, *more))))
        try:
            await self.report([at], seconds=seconds)
        except StateCacheError as error:
            _logger.debug("that %s was lost is not recorded: %s", change_id, error)

    async def _compare(self, end: float, *, pages: int | None = None) -> None:
        """Tell which of the commits that were not compared are lost: all once, or so many pages, the oldest first.

        What Postgres has not come to yet stays, behind the others.
        """
        once = len(self._in_flight.uncompared)
        while once > 0 and pages != 0:
            left = page = self._in_flight.take_uncompared()
            if not page:
                return
            once, pages = once - len(page), None if pages is None else pages - 1
            try:
                standings, rows = await self._postgres.fetch_each(
                    ("standing", "report_lost"), self._spread(page), seconds=max(end - monotonic(), 0.001)
                )
                passed = {row[:3] for row in standings if row[4] >= row[2] or row[6]}
                waited_for = self._in_flight.under_way
                left = [one for one in page if one[:3] not in passed or one.change_id in waited_for]
            finally:
                self._in_flight.uncompared.extend(left)
            self._told_of(rows, {one.change_id: one for one in page if one.change_id not in waited_for})

    def _spread(self, positions: Iterable[Acknowledged]) -> dict[str, Any]:
        """Return positions as a statement's parameters, each once for each of its keys."""
        each = [(*one[:4], key) for one in positions for key in one.keys or ("",)]
        shards, epochs, ns, change_ids, keys = (list(column) for column in zip(*each, strict=True))
        return {
            "shards": shards, "epochs": epochs, "ns": ns, "change_ids": change_ids, "keys": keys,
            "by": writer_of(self._settings),
        }  # fmt: skip

    def _told_of(self, rows: Sequence[tuple[Any, ...]], ours: Mapping[str, Acknowledged]) -> tuple[LostCommit, ...]:
        """Return which of these commits the rows say to be lost, and log those that are new."""
        lost = {row[3]: _lost(row, ours[row[3]].keys[0]) for row in rows if row[3] in ours and not row[7]}
        self._tell([*lost.values()], ours)
        return tuple(lost.values())

    def _tell(self, lost: Sequence[LostCommit], ours: Mapping[str, Acknowledged]) -> None:
        with self._mutex:
            new = [one for one in lost if one.change_id not in self._told]
            told = self._told | {one.change_id: ours[one.change_id] for one in new}
            self._told = dict(list(told.items())[-LOST_MAX:])
        if new:
            named = ", ".join(f"{one.key!r} at {one.position}" for one in new[:_NAMED])
            more = ", …" if len(new) > _NAMED else ""
            _logger.warning(
                "%d commits that were acknowledged are lost, with their Redis or with their entry in the stream, %d of "
                "them are kept in conflict: %s%s", len(new), sum(one.kept for one in new), named, more,
            )  # fmt: skip


def _lost(row: Sequence[Any], key: str) -> LostCommit:
    place = Position(row[1], row[2])
    return LostCommit(change_id=row[3], key=key, position=place, ended_by=row[5], kept=row[8])
