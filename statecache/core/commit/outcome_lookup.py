"""Asking what became of a change whose writer never learnt it.

The stream is asked first and Postgres after it, for what leaves the stream is in Postgres by then. What they say
counts only where that Redis is a primary and the one that opened the shard's epoch, and Postgres knows of no later
one: an old primary that still answers, a replica, or a copy whose gate is not open yet, says nothing about what is or
will be the lineage.

    Postgres   change        applied, durable        stream   there          applied
               conflict      forked, if not applied again     nowhere        not applied, and never will be:
               quarantine    quarantined                                     once no attempt can be executed any more;
                                                                             lost, if its position is known and died
    lost, too, is what Postgres has passed in its lineage and does not hold whole, wherever Redis still remembers it,
    and forked what stood where it was passed in a branch that is kept;
    what is nowhere is unknown as long as Postgres holds less than Redis remembers to be flushed: it went back

Whether an attempt may still be executed knows only the client that sent it (see `unknown_outcomes`); to others what is
nowhere is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.commit_protocol.answers import found_in
from statecache.core.commit.durable import NOWHERE
from statecache.core.read.listed import BEHIND, flushed_in
from statecache.errors import ConfigurationError, Unavailable, UsageError
from statecache.model import Outcome, Position, Verdict
from statecache.redis_errors import refusal

if TYPE_CHECKING:
    from statecache.commit_protocol.in_flight import InFlight
    from statecache.commit_protocol.unknown_outcomes import NotedOutcome, UnknownOutcomes
    from statecache.core.epoch.opener import Opener
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings

_SET_ASIDE: dict[str, Verdict] = {"conflict": "forked", "quarantine": "quarantined"}
_PAGE = 1000
_STRANGER = (
    "neither Redis nor Postgres holds it, and whether an attempt may still arrive knows only the client that sent it"
)
_ARRIVING = "neither Redis nor Postgres holds it, and an attempt may still arrive"
_MOVING = "the shard is being taken over by another Redis"
_NO_ANSWER = "there was no time left for an answer"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard's stream showed: the epoch, and where the change stands, if it is there.

    `epoch` is None where this Redis is not the one that opened the shard; `flushed` is how far it remembers that the
    shard is flushed.
    """

    epoch: int | None
    flushed: int = 0
    version: int | None = None
    position: Position | None = None


class OutcomeLookup:
    """Inquiries about changes, one at a time, in Redis and Postgres."""

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, *, postgres: PostgresTier, opener: Opener,
        unknown_outcomes: UnknownOutcomes, in_flight: InFlight,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._opener = opener
        self._unknown_outcomes = unknown_outcomes
        self._in_flight = in_flight

    async def outcome(self, change_id: str, key: str, *, position: Position | None, end: float) -> Outcome:
        """Ask until there is a final answer, or none can be expected, or the time is up."""
        position = position or self._in_flight.position_of(change_id, key)
        noted = self._unknown_outcomes.get(change_id)
        if noted is not None and key not in noted.commit.keys:
            raise UsageError(f"change {change_id} wrote {noted.commit.keys[0]!r} and not {key!r}")
        backoff, reason = Backoff(0.005, 0.25), _NO_ANSWER
        while (now := monotonic()) < end:
            noted = self._unknown_outcomes.get(change_id)
            over = noted is not None and noted.until < now  # asked before looking: what comes later is refused
            try:
                found = await self._look(change_id, key, position or NOWHERE, end)
                reason = _MOVING if found is None else found.reason or _reason(noted)
            except Unavailable as error:
                found, reason = None, error.problem
            nowhere = found is not None and not found.settled and not found.reason
            if found is not None and nowhere and over and self._unknown_outcomes.get(change_id) is noted:
                found = msgspec.structs.replace(found, verdict="not applied")
            if found is not None and found.settled:
                self._unknown_outcomes.resolve(change_id)
                return found
            if found is not None and (noted is None or noted.until > end):
                break
            await self._redis.io.sleep(max(min(backoff.take(), end - monotonic()), 0.0))
        return Outcome(change_id=change_id, key=key, verdict="unknown", reason=reason)

    async def _look(self, change_id: str, key: str, position: Position, end: float) -> Outcome | None:
        """Ask once: `unknown` where the change is nowhere, None where what was seen proves nothing.

        With a reason `unknown` says that it may be applied all the same.
        """
        shard = self._keys.shard(key)
        told = await self._in_stream(shard, change_id, key, end)
        seconds = max(end - monotonic(), 0.001)
        asked = {"change_id": change_id, "shard": shard, "epoch": position.epoch, "n": position.n}
        rows = await self._postgres.fetch("lookup_change", asked, seconds=seconds)
        found = _judged(change_id, key, position, told, rows)
        if found is None:
            await self._opener.open(shard, end=end)
        return found

    async def _in_stream(self, shard: int, change_id: str, key: str, end: float) -> Told:
        """Search the stream, and the last commits that the state remembers.

        Every page proves anew that it is the right Redis that answers.
        """
        start, wanted, epoch = b"-", change_id.encode(), None
        while True:
            commands: list[Any] = [
                ("INFO", "replication") if self._settings.fence == "on" else ("PING",),
                ("HMGET", self._keys.meta(shard), "epoch", "replid", "flushed", "retired"),
                ("HMGET", self._keys.state(key), "recent", "version"),
                ("XRANGE", self._keys.changes(shard), start, b"+", "COUNT", _PAGE),
            ]
            replies = await self._redis.read(commands, seconds=max(end - monotonic(), 0.001))
            for reply in replies:
                if isinstance(reply, Exception):
                    raise refusal(reply, self._keys.changes(shard)) from reply
            info, meta, state, entries = replies
            if self._settings.fence == "on" and b"role:master" not in info:
                await self._redis.pool.drop_idle(all_of_them=True)
                return Told(epoch=None)
            if not self._is_fenced(info, meta) or (epoch is not None and epoch != int(meta[0])):
                return Told(epoch=None)
            epoch, flushed = flushed_in(meta[0], *meta[2:])
            if (remembered := _remembered(wanted, *state)) is not None:
                return Told(epoch=epoch, version=remembered[0], position=remembered[1])
            for entry_id, raw in entries:
                if len(raw) > 3 and raw[3] == wanted and (found := found_in(entry_id, raw, [key])):
                    return Told(epoch=epoch, version=found[2][0], position=found[0])
            if not entries:
                return Told(epoch=epoch, flushed=flushed)
            start = b"(" + entries[-1][0]

    def _is_fenced(self, info: bytes, meta: Sequence[bytes | None]) -> bool:
        epoch, replid = meta[:2]
        if not epoch or not replid:
            return False
        return self._settings.fence == "off" or b"master_replid:" + replid + b"\r" in info


def _remembered(change_id: bytes, recent: bytes | None, version: bytes | None) -> tuple[int, Position | None] | None:
    """Return version and position of a change among a state's last ones (`<change_id>@<position>`, newest first)."""
    for age, one in enumerate((recent or b"").split()):
        known, _, position = one.partition(b"@")
        if known == change_id:
            return int(version or age) - age, Position.parse(position)
    return None


def _judged(
    change_id: str, key: str, position: Position, told: Told, rows: Sequence[tuple[Any, ...]]
) -> Outcome | None:
    """Return the outcome; what Postgres holds always counts, what only the stream shows if its Redis is current."""
    mine = {row[0]: row for row in rows if row[1] == key or row[0] in ("shard", "ended")}
    if "change" in mine:
        _, _, version, _, epoch, n, *_ = mine["change"]
        place = Position(epoch, n)
        return Outcome(
            change_id=change_id, key=key, verdict="applied", version=version, position=place, durable=True
        )  # fmt: skip
    for kind, verdict in _SET_ASIDE.items():
        if kind in mine:
            _, _, version, _, epoch, n, *_ = mine[kind]
            place = Position(epoch, n)
            return Outcome(change_id=change_id, key=key, verdict=verdict, version=version or None, position=place)
    if "shard" not in mine:
        raise ConfigurationError(f"Postgres knows no shard of {key!r}", hint="Run `statecache migrate`.")
    if told.epoch is None or told.epoch != mine["shard"][4]:
        return None
    kept = Position(*mine["branch"][4:6]) if "branch" in mine else None
    passed = _passed(position, told, mine, rows)
    if passed is not None and passed != kept:
        reason = f"Postgres went past its position {passed}, without all of it: its entry was not in the stream"
        return Outcome(change_id=change_id, key=key, verdict="lost", position=passed, reason=reason)
    if told.version is not None and passed is None:
        return Outcome(
            change_id=change_id, key=key, verdict="applied", version=told.version, position=told.position
        )  # fmt: skip
    if kept is not None:
        version = mine["branch"][2]
        return Outcome(change_id=change_id, key=key, verdict="forked", version=version or None, position=kept)
    if "ended" in mine:
        epoch, start = mine["ended"][4:6]
        reason = f"epoch {epoch} began at {start}, before its position {position}, and no tier holds it"
        return Outcome(change_id=change_id, key=key, verdict="lost", position=position, reason=reason)
    behind = BEHIND if mine["shard"][5] < told.flushed else ""
    return Outcome(change_id=change_id, key=key, verdict="unknown", reason=behind)


def _passed(
    position: Position, told: Told, mine: Mapping[str, tuple[Any, ...]], rows: Sequence[tuple[Any, ...]]
) -> Position | None:
    """Return where a change stood that Postgres has passed in its lineage, and does not hold whole."""
    told_lost = mine.get("lost") or next((row for row in rows if row[0] == "part"), None)
    part = None if told_lost is None else Position(told_lost[4], told_lost[5])
    if part is None and told.version is not None:
        part = told.position
    elif part is None and position != NOWHERE and "ended" not in mine:
        part = position
    return part if part is not None and part.n <= mine["shard"][5] else None


def _reason(noted: NotedOutcome | None) -> str:
    return _STRANGER if noted is None else _ARRIVING
