"""What a commit tries again, and how a change is found that may have been applied long ago.

A change that is found is acknowledged as the first time, and at `replica` and `disk` that takes copies of it. Finding
writes nothing, and a WAIT behind nothing says nothing: so the server that holds the change confirms it by a write, and
the WAIT stands behind that one, on the same connection. A server that does not hold it leads to looking again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statecache.backoff import LATE_S
from statecache.call_notes import note
from statecache.clock import monotonic
from statecache.commit_protocol.answers import Committed, Found
from statecache.commit_protocol.decision import Again, Fail, Pause, Refuse, Wait, after_error, after_lookup, hindered
from statecache.core.commit.durability_support import COPIED
from statecache.core.commit.repeated_modifiers import remade
from statecache.errors import (
    ConfigurationError,
    ForeignData,
    RedisUnavailable,
    StateCacheError,
    Unavailable,
)
from statecache.expiry import until_of
from statecache.history_errors import HistoryDamaged
from statecache.redis_errors import refusal

if TYPE_CHECKING:
    from statecache.commit_protocol.commit import Commit
    from statecache.commit_protocol.in_flight import InFlight
    from statecache.core.commit.attempts import Attempts
    from statecache.core.commit.durability_support import DurabilitySupport
    from statecache.core.commit.durable import Durable
    from statecache.core.epoch.newest_epochs import NewestEpochs
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.core.redis.tracking import TrackedConnection
    from statecache.model import Position

_UNCOUNTED = "it is applied, and how many copies of it there are was not learnt"
_ELSEWHERE = "the server that is asked now does not hold the change that was found"


class Repeats:
    """What a commit does beyond its first attempt: trying again, and looking up what may have been applied."""

    def __init__(
        self,
        redis: RedisTier,
        attempts: Attempts,
        *,
        durable: Durable,
        support: DurabilitySupport,
        tracked: TrackedConnection,
        in_flight: InFlight,
        epochs: NewestEpochs,
    ) -> None:
        self._redis = redis
        self._attempts = attempts
        self._support = support
        self._durable = durable
        self._tracked = tracked
        self._in_flight = in_flight
        self._epochs = epochs

    async def link_for(self, commit: Commit, seconds: float) -> Link | None:
        """Lend a connection to a server that can give the commit's durability level; return None to try again."""
        pool, asked = self._redis.pool, monotonic()
        try:
            link = await pool.take(seconds, ahead=commit.loaded)
        except RedisUnavailable as error:
            commit.waited_s += monotonic() - asked
            if error.reason == "pool":  # what time is left would be for the server
                commit.fail(pool.all_in_use(commit.waited_s))
            await self.take(commit, hindered(commit, error))
            return None
        except StateCacheError as error:
            await self.take(commit, hindered(commit, error))
            return None
        commit.waited_s += monotonic() - asked
        if commit.durability not in COPIED:
            return link
        try:
            await self._support.check_server(commit.durability, link, end=commit.end)
        except BaseException as error:  # whatever it is, the connection is another's to use
            pool.give(link)
            if not isinstance(error, StateCacheError):
                raise
            if isinstance(error, RedisUnavailable):
                await pool.drop_idle()
            await self.take(commit, hindered(commit, error))
            return None
        return link

    async def look_up(self, commit: Commit, *, applied: bool, position: Position | None = None) -> Committed | None:
        """Find out whether a repeat was applied long ago; where not, let it go on, pinned to what was there.

        `position` is where it was, if that is known: Lost is raised where Postgres has passed that without it.
        What was there is read first: an earlier attempt that arrives during the search then meets a changed state.
        """
        keys = [write.key for write in commit.written()]
        try:
            current = await self._redis.read(
                [("HMGET", redis_key, "change_id", "op", "encoding") for redis_key in commit.redis_keys],
                seconds=max(commit.end - monotonic(), 0.001),
            )
            for redis_key, reply in zip(commit.redis_keys, current, strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, redis_key) from reply
            now = self._redis.clock.now_ms()
            current = [(change_id, _op_at(now, op, encoding)) for change_id, op, encoding in current]
            position = position or commit.applied_at
            found = await self._durable.lookup(
                commit.shard, commit.change_id, keys, end=commit.end, position=position, certain=True
            )
            if found is not None and commit.modifies:
                found = await remade(self._durable, commit, found, end=commit.end)
        except (Unavailable, ForeignData, ConfigurationError, HistoryDamaged) as error:
            commit.lost_answer = commit.lost_answer or error
            commit.fail(error)
        commit.applied_at = None  # it died there with its epoch, if it is found nowhere
        step = after_lookup(commit, found, current, applied=applied)
        if isinstance(step, Found):
            return await self._acknowledged(commit, step)
        await self.take(commit, step)
        return None

    async def _acknowledged(self, commit: Commit, found: Found) -> Committed | None:
        """Acknowledge a change that was looked up, once copies of it are counted; return None to look again."""
        replies: list[Any] = []
        if commit.durability in COPIED:
            commit.lost_answer = commit.lost_answer or RedisUnavailable(
                "copies", detail=_UNCOUNTED
            )  # applied, whatever hinders now
            replies = await self._confirmed(commit, found)
            if not replies:
                return None
        committed = Committed(
            commit.change_id, found.position, found.at, found.versions, found.parents, found.made,
            repeated=found.in_stream,
        )  # fmt: skip
        return await self.acknowledge(commit, committed, replies)

    async def acknowledge(self, commit: Commit, committed: Committed, replies: Sequence[Any]) -> Committed:
        """Note that the commit is applied, count its copies, and return it."""
        self._in_flight.acknowledge(commit.shard, committed.position, commit.change_id, commit.keys)
        self._epochs.note(commit.shard, committed.position.epoch)
        await self._tracked.wrote(commit, committed)
        self._count_copies(commit, replies)
        return committed

    async def copied(self, commit: Commit) -> bool:
        """Return True once copies of a change that is known to be applied are counted; False where it is nowhere."""
        keys = [write.key for write in commit.writes]
        while True:
            found = await self._durable.lookup(commit.shard, commit.change_id, keys, end=commit.end, parts=True)
            if found is None:
                await self.take(commit, Pause(RedisUnavailable("copies", detail=_ELSEWHERE)))
                return False
            if replies := await self._confirmed(commit, found):
                self._count_copies(commit, replies)
                return True

    async def _confirmed(self, commit: Commit, found: Found) -> list[Any]:
        """Return the replies of the server that holds the change; none to look again."""
        link = await self.link_for(commit, max(commit.end - monotonic(), 0.001))
        if link is None:
            return []
        try:
            replies = await self._attempts.confirm(link, commit, found, max(commit.end - monotonic(), 0.001))
        except RedisUnavailable as error:
            await self._redis.pool.drop_idle()
            await self.take(commit, hindered(commit, error))
            return []
        finally:
            self._redis.pool.give(link)
        if isinstance(replies[0], Exception):
            await self.take(commit, after_error(commit, replies[0], now=monotonic()))
            return []
        if replies[0][1] == b"GONE":
            await self.take(commit, Pause(RedisUnavailable("copies", detail=_ELSEWHERE)))
            return []
        return replies

    def _count_copies(self, commit: Commit, replies: Sequence[Any]) -> None:
        """Raise DurabilityNotMet where the WAIT behind the script counts too few copies; MUTE has none to count."""
        if len(replies) > 1:
            copies = 0 if replies[0][1] == b"MUTE" else replies[1]
            self._support.check_copies(commit.change_id, commit.durability, copies)

    async def take(self, commit: Commit, step: Again | Pause | Wait | Refuse | Fail) -> None:
        """Raise what a step says, or return when the commit is to be sent again."""
        match step:
            case Again(counted):
                note(retries=int(counted))
            case Pause(error):
                error = commit.hindered(error, now=monotonic())
                if commit.backoff.outlasts(commit.end):
                    commit.fail(error)
                note(retries=1)
                await self._redis.io.sleep(commit.backoff.take())
            case Wait(error, seconds):
                if monotonic() + seconds > commit.end + LATE_S:
                    commit.fail(error)
                await self._redis.io.sleep(seconds)
            case Refuse(error):
                raise error
            case Fail(error, cause):
                commit.fail(error, cause)


def _op_at(now_ms: int, op: bytes | None, encoding: bytes | None) -> bytes | None:
    """Return what a state's newest change amounts to by then, on the server's clock: `expired` once it has ended."""
    until = until_of((encoding or b"").decode("utf-8", "replace"))
    return b"expired" if op == b"set" and until is not None and until <= now_ms else op
