"""Going down well: who is refused, what is let end, what is given back, what is waited for, and what is left.

    refused      every call that begins from now on: UsageError, it is closing
    let end      the calls under way: commits, updates, transactions, and whatever is on a connection
    given back   the leases, so that others need not wait for their end
    waited for   until Postgres holds what this client was acknowledged, or has set it aside (see `in_flight`)
    left         what the deadline cut off, told at the end, and logged in one line

Postgres alone is asked how far it is. A position of an earlier epoch counts only where Postgres holds it: a failover
may have lost what the watermark has passed since. Without a fence it may have done so within an epoch, and what
Postgres holds at a position may be another's commit: there each is compared, and its shard is left where that cannot
be done. What cannot be told is left.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.entries import ForeignEntry, NewerFormat, change_set
from statecache.errors import ConfigurationError, StateCacheError, Unavailable, UsageError
from statecache.model import DrainReport, LostCommit
from statecache.redis_errors import refusal
from statecache.settings import writer_of

if TYPE_CHECKING:
    from statecache.commit_protocol.in_flight import Tail
    from statecache.core.runtime import Runtime

KEYS_TOLD_MAX = 100
_LATE_S = 0.05
"""What reporting what is left, and giving leases back, may take beyond the deadline, in seconds."""
_TELL_S = 0.5
_TELL_SHARE = 0.2
"""How long before the deadline the wait for Postgres ends, so that what is left can be reported: the lesser of both."""
_PAGE = 1000
_logger = logging.getLogger("statecache")


class TailProgress(msgspec.Struct, frozen=True):
    """How far Postgres has come with one tail: its shard's epoch and watermark, and whether it holds the tail.

    `ended` says that a later epoch began before it, `excepted` that its shard has positions which are not held.
    """

    tail: Tail
    epoch: int
    flushed: int
    held: bool
    ended: bool = False
    excepted: bool = False

    @property
    def settled(self) -> bool:
        """Whether Postgres holds all of the tail, or has set aside what it does not hold."""
        return self.held or (self.epoch == self.tail[1] and self.flushed >= self.tail[2])

    @property
    def lost(self) -> bool:
        """Whether waiting is of no use: a later epoch began before a position that is nowhere, or has passed it."""
        passed = self.epoch > self.tail[1] and self.flushed >= self.tail[2]
        return not self.settled and (self.ended or passed)


def checked_drain(seconds: float) -> float:
    """Return the seconds unchanged, or raise UsageError."""
    if not (isinstance(seconds, (int, float)) and 0 <= seconds < inf):
        raise UsageError(f"drain={seconds} is not a number of seconds from 0 up")
    return seconds


async def leave(runtime: Runtime, seconds: float) -> DrainReport:
    """Close down within that many seconds, and a little more to report what is left; the tiers stay open."""
    begun = monotonic()
    end = begun + seconds
    runtime.in_flight.closing = True
    await _calls_end(runtime, end)
    under_way = len(runtime.in_flight.under_way)
    leases = await runtime.leases.release(end=end + _LATE_S)
    standings = await _flushed(runtime, end - min(_TELL_S, seconds * _TELL_SHARE))
    behind = [one for one in standings if not one.settled]
    commits, keys = await _told(runtime, [one for one in behind if not one.lost], end + _LATE_S)
    doubted = runtime.in_flight.uncompared or runtime.losses.any_told
    doubted = doubted or any(one.lost or one.excepted for one in standings)
    lost = await _lost(runtime, end + _LATE_S) if doubted else ()
    shards = tuple(sorted({one.tail[0] for one in behind} | runtime.in_flight.uncompared_shards()))
    left = DrainReport(commits=commits, keys=keys, shards=shards, under_way=under_way, leases=leases, lost=lost)
    _log(left, monotonic() - begun)
    return left


async def _calls_end(runtime: Runtime, end: float) -> None:
    backoff = Backoff(0.002, 0.05)
    while (
        runtime.in_flight.under_way or runtime.redis.pool.lent or runtime.postgres.pool.lent or runtime.tracked.reading
    ):
        left = end - monotonic()
        if left <= 0:
            return
        await runtime.redis.io.sleep(min(backoff.take(), left))


async def _flushed(runtime: Runtime, end: float) -> list[TailProgress]:
    """Ask Postgres until all is settled, or nothing more can be expected in time; return how it stands."""
    tails = runtime.in_flight.awaited_tails()
    standings = [TailProgress(tail, -1, 0, held=False) for tail in tails]
    backoff = Backoff(0.005, 0.25)
    while tails:
        try:
            standings = await _ask(runtime, tails, max(end - monotonic(), _LATE_S))
        except ConfigurationError as error:
            _logger.debug("closing does not wait for Postgres: %s", error)
            break
        except Unavailable as error:
            _logger.debug("closing waits for Postgres: %s", error)
        left = end - monotonic()
        if left <= 0 or all(one.settled or one.lost for one in standings):
            break
        await runtime.redis.io.sleep(min(backoff.take(), left))
    return standings


async def _ask(runtime: Runtime, tails: Sequence[Tail], seconds: float) -> list[TailProgress]:
    shards, epochs, ns = (list(column) for column in zip(*tails, strict=True))
    rows = await runtime.postgres.fetch("standing", {"shards": shards, "epochs": epochs, "ns": ns}, seconds=seconds)
    known = {(row[0], row[1], row[2]): TailProgress((row[0], row[1], row[2]), *row[3:]) for row in rows}
    return [known.get(tail, TailProgress(tail, -1, 0, held=False)) for tail in tails]


async def _lost(runtime: Runtime, end: float) -> tuple[LostCommit, ...]:
    """Return the commits of this client that were lost, as far as can be found out in time."""
    try:
        return await runtime.losses.look(seconds=max(end - monotonic(), 0.01))
    except StateCacheError as error:
        _logger.debug("what was lost cannot be told: %s", error)
        return ()


async def _told(runtime: Runtime, behind: Sequence[TailProgress], end: float) -> tuple[int, tuple[str, ...]]:
    """Return how many of this writer's commits stand in the streams beyond the watermark, and their first keys."""
    commits = 0
    keys: dict[str, None] = {}
    for one in behind:
        try:
            async for key_names in _beyond(runtime, one, end):
                commits += 1
                keys.update(dict.fromkeys(key_names))
        except StateCacheError as error:
            _logger.debug("what is left of shard %d cannot be told: %s", one.tail[0], error)
    return commits, tuple(list(keys)[:KEYS_TOLD_MAX])


async def _beyond(runtime: Runtime, one: TailProgress, end: float) -> Any:
    """Yield the keys of each commit of this writer from the watermark up to the tail."""
    shard, epoch, n = one.tail
    start, stop = f"{epoch}-{one.flushed + 1}".encode(), f"{epoch}-{n}".encode()
    while True:
        command = ("XRANGE", runtime.keys.changes(shard), start, stop, "COUNT", _PAGE)
        (entries,) = await runtime.redis.read([command], seconds=max(end - monotonic(), 0.01))
        if isinstance(entries, Exception):
            raise refusal(entries, runtime.keys.changes(shard)) from entries
        for entry_id, raw in entries:
            try:
                entry = change_set(entry_id, raw)
            except (ForeignEntry, NewerFormat):
                continue
            if entry.writer == writer_of(runtime.settings):
                yield [change.key for change in entry.changes]
        if len(entries) < _PAGE:
            return
        start = b"(" + entries[-1][0]


def _log(left: DrainReport, seconds: float) -> None:
    if left.nothing:
        _logger.info("closed in %.3f s, nothing is left", seconds)
    else:
        _logger.warning("closed after %.3f s: %s", seconds, left)
