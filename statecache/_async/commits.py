"""The one write path: a commit is one run of one script, repeated until its outcome is known.

A commit has one change_id from its birth to its end, whatever happens in between. A lost reply is never "not
applied": the same change_id is sent again, and the script either finds it in the state's `recent` and answers as the
first time, or applies it. Where `recent` no longer reaches back far enough the stream and Postgres are asked. Only
when none of that can be had in time is the outcome unknown, and said to be so.

    OK, DUP    applied            CONFLICT, BACKLOG, LIMIT, FOREIGN, OOM   not applied, and that is certain
    FENCED     open the shard, again          MISSING   hydrate, again       UNSURE   look it up, again or done
    no reply   again with the same change_id, marked as a repeat             LATE   again

Every attempt tells the server when it will be given up. One that was held up on its way is refused, so it cannot be
executed when the state's `recent` has long forgotten the attempt that came after it.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn

from redis.exceptions import NoScriptError

from statecache._async.answers import Committed, committed_of, error_of, is_lasting
from statecache._async.observing import note
from statecache._async.redis import AGAIN, DEMOTED, FINAL, code_of, refusal
from statecache._async.underway import Commit
from statecache._bridge import async_sleep
from statecache.clock import monotonic
from statecache.errors import (
    Backpressure,
    ConfigurationError,
    DurabilityNotMet,
    ForeignData,
    Forked,
    LimitExceeded,
    OutcomeUnknown,
    Quarantined,
    RedisUnavailable,
    StateCacheError,
    Unavailable,
)
from statecache.lua import script
from statecache.model import COMMIT_BYTES_MAX, STATE_OVERHEAD_BYTES, Write

if TYPE_CHECKING:
    from statecache._async.connect import AsyncLink
    from statecache._async.durable import Durable
    from statecache._async.hydrate import Hydrator
    from statecache._async.levels import Levels
    from statecache._async.line import Line
    from statecache._async.opener import Opener
    from statecache._async.redis import RedisTier
    from statecache.keys import KeySpace
    from statecache.model import Position
    from statecache.settings import Settings

_NOWHERE_ELSE = "it is applied in Redis, but its entry was removed from the stream before it was flushed"
_PASSED = "it is applied in Redis, but Postgres has been flushed past it without it"


def new_change_id() -> str:
    """This makes a change_id: 96 random bits as 24 hexadecimal digits."""
    return secrets.token_hex(12)


def _weight(write: Write) -> int:
    return 0 if write.op == "check" else len(write.value) + len(write.key.encode()) + STATE_OVERHEAD_BYTES


class Committer:
    """This commits change-sets and gives their outcome."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        redis: RedisTier,
        *,
        opener: Opener,
        hydrator: Hydrator,
        durable: Durable,
        levels: Levels,
        line: Line,
        rng: Random,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._opener = opener
        self._hydrator = hydrator
        self._durable = durable
        self._levels = levels
        self._line = line
        self._rng = rng
        self._script = script("commit")
        self._fixed = [
            (keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.hydrating(shard))
            for shard in range(keys.shards)
        ]
        self._nonces = count(1)
        self._limits = (
            settings.backlog_entries_max, settings.backlog_bytes_max, COMMIT_BYTES_MAX, settings.value_bytes_max,
        )  # fmt: skip

    def new(
        self, writes: list[Write], shard: int, *, durability: str, actor: str, reason: str, end: float,
        change_id: str | None = None,
    ) -> Commit:  # fmt: skip
        """This makes a commit of writes to one group; a change_id that was used before marks it as a repeat."""
        if len(writes) > 1 and (size := sum(map(_weight, writes))) > COMMIT_BYTES_MAX:
            hint = "Split the commit, or store less in each of its values."
            what, first = "the commit's size in bytes", writes[0].key
            raise LimitExceeded(what, actual=size, limit=COMMIT_BYTES_MAX, key=first, hint=hint)
        return Commit(
            change_id=change_id or new_change_id(),
            shard=shard,
            writes=writes,
            durability=durability,
            actor=actor,
            reason=reason,
            end=end,
            redis_keys=[self._keys.state_stem(shard) + write.key for write in writes],
            repeat=change_id is not None,
        )

    async def commit(self, commit: Commit) -> Committed:
        """This applies the commit at most once and gives its outcome at the asked durability."""
        if commit.durability == "memory":
            return await self._apply(commit)
        await self.prepare(commit.durability, commit.shard, end=commit.end)
        return await self._endured(commit, await self._apply(commit))

    async def commit_watched(self, commit: Commit, link: AsyncLink, leave: Callable[[], Awaitable[None]]) -> Committed:
        """This does the same, once prepared, in MULTI / EXEC on a connection that watches the commit's states.

        `leave` gives that connection back: who carries on outside of MULTI, or waits, must not keep others from theirs.
        """
        replies = await self._exec(commit, link)
        await leave()
        committed = await self._outcome(commit, replies) if replies else None
        if committed is None:
            note(retries=1)
            committed = await self._apply(commit)
        return await self._endured(commit, committed)

    async def prepare(self, durability: str, shard: int, *, end: float) -> None:
        """This refuses a level that cannot be given, and begins to listen where the commit will be waited for."""
        if durability != "memory":
            await self._levels.check(durability, end=end)
        if durability == "postgres":
            await self._durable.watch(shard, end=end)

    async def _endured(self, commit: Commit, committed: Committed) -> Committed:
        """This waits until Postgres holds the commit; one that was lost with its Redis is applied again."""
        if commit.durability != "postgres":
            return committed
        keys = tuple(write.key for write in commit.written())
        while not await self._is_durable(commit, committed.position, keys):
            commit.repeat, lost = True, committed.position
            committed = await self._apply(commit)
            if committed.position == lost:
                raise OutcomeUnknown(commit.change_id, keys=keys, reason=_PASSED)
        return committed

    async def _is_durable(self, commit: Commit, position: Position, keys: tuple[str, ...]) -> bool:
        """This waits; the commit was applied, so what hinders the waiting leaves only its end unknown."""
        try:
            return await self._durable.wait(commit.shard, position, commit.change_id, keys, end=commit.end)
        except (Forked, Quarantined, OutcomeUnknown):
            raise
        except StateCacheError as error:
            raise OutcomeUnknown(commit.change_id, keys=keys, reason=str(error)) from error

    async def _exec(self, commit: Commit, link: AsyncLink) -> list[Any]:
        """This gives the replies that decide, none where it has to be carried on outside of MULTI.

        An EXEC that did not run says only that something touched a watched state, if only its time to live: the
        script knows whether that was a change, and of which state.
        """
        seconds = max(commit.end - monotonic(), 0.001)
        attempt_s = seconds if seconds < 0.2 else seconds / 2
        commands: list[Any] = [("MULTI",), self._call(link, commit, attempt_s), ("EXEC",)]
        if commit.durability in ("replica", "disk"):
            commands.append(self._levels.wait_command(commit.durability, round(seconds * 400)))
        try:
            replies = await link.run(commands, seconds=attempt_s)
            opened, queued, executed, *waited = replies
            refused = isinstance(queued, Exception)
            if opened != b"OK" or not (refused or queued == b"QUEUED"):
                await self._slipped(link)
            link.watching = isinstance(executed, Exception)
            if not refused and isinstance(executed, list):
                await self._check_nonce(link, commit, executed[0])
        except RedisUnavailable as error:
            commit.unanswered(error)
            return []
        if executed is None:
            return []
        decisive = queued if refused else executed if isinstance(executed, Exception) else executed[0]
        await self._noted(link, decisive)
        return [decisive, *waited]

    async def _apply(self, commit: Commit) -> Committed:
        while True:
            seconds = commit.end - monotonic()
            if seconds <= 0:
                late = RedisUnavailable("timeout", detail="the time was up")
                commit.fail(commit.doubt or commit.hindrance or late)
            try:
                link = await self._redis.pool.take(seconds)
            except RedisUnavailable as error:
                await self._pause(commit, error)
                continue
            except StateCacheError as error:
                commit.fail(error)
            try:
                replies = await self._exchange(link, commit, max(commit.end - monotonic(), 0.001))
            except RedisUnavailable as error:
                commit.unanswered(error)
                await self._redis.pool.drop_idle()
                await self._pause(commit, error)
                continue
            finally:
                self._redis.pool.give(link)
            commit.hindrance = None
            committed = await self._outcome(commit, replies)
            if committed is not None:
                return committed

    async def _exchange(self, link: AsyncLink, commit: Commit, seconds: float) -> list[Any]:
        """This runs the script once, and WAIT behind it on the same connection where the level asks for it."""
        attempt_s = seconds if seconds < 0.2 else seconds * 0.4
        commands = [self._call(link, commit, attempt_s)]
        if commit.durability in ("replica", "disk"):
            commands.append(self._levels.wait_command(commit.durability, round(attempt_s * 800)))
        replies = await link.run(commands, seconds=attempt_s)
        await self._check_nonce(link, commit, replies[0])
        await self._noted(link, replies[0])
        return replies

    async def _check_nonce(self, link: AsyncLink, commit: Commit, reply: Any) -> None:
        if isinstance(reply, list) and reply[:1] != [commit.nonce.encode()]:
            await self._slipped(link)

    async def _slipped(self, link: AsyncLink) -> NoReturn:
        """This closes a connection that has answered something that was not asked, or refused to open a MULTI."""
        await link.close()
        raise RedisUnavailable("connection", detail="a reply belongs to another request")

    async def _noted(self, link: AsyncLink, reply: Any) -> None:
        """This keeps whether the server knows the script: a digest it has forgotten is known not to have run.

        A connection on which an attempt was late is closed: the next one asks for the server's time anew. So is one to
        a server that is a primary no more: the next one may find its successor.
        """
        if isinstance(reply, list):
            link.knows(self._script, True)
            if reply[1] == b"LATE":
                await link.close()
        elif isinstance(reply, NoScriptError):
            link.knows(self._script, False)
        elif isinstance(reply, Exception) and code_of(reply) in DEMOTED:
            await self._redis.leave(link)

    def _call(self, link: AsyncLink, commit: Commit, attempt_s: float) -> Any:
        """This spells the script's command, which the server refuses once this side has given the attempt up."""
        commit.nonce = str(next(self._nonces))
        given_up = monotonic() + attempt_s
        commit.latest = given_up + link.greeting_s
        latest_ms = int(given_up * 1000 + link.ahead_ms)
        arguments = [*commit.arguments(self._settings, self._limits), latest_ms]
        if commit.repeat or commit.lingers:
            last = max(commit.lingers, commit.latest) + self._settings.timeout_s
            arguments.append(int(last * 1000 + link.ahead_ms))
        return link.call(self._script, (*self._fixed[commit.shard], *commit.redis_keys), arguments)

    async def _outcome(self, commit: Commit, replies: Sequence[Any]) -> Committed | None:
        """This reads the script's answer: a result, an error raised, or None for trying again."""
        reply = replies[0]
        if isinstance(reply, Exception):
            await self._refused(commit, reply)
            return None
        verdict = reply[1]
        if verdict in (b"OK", b"DUP", b"MUTE"):
            committed = committed_of(commit.change_id, reply)
            await self._line.wrote(commit, committed)
            if len(replies) > 1:
                self._check_copies(commit, replies[1] if verdict != b"MUTE" else 0)
            return committed
        if verdict == b"FENCED":
            await self._opened(commit)
        elif verdict == b"LATE":
            commit.repeat = True
            await self._pause(commit, RedisUnavailable("late", detail="the server got the commit after its time"))
        elif verdict == b"MISSING":
            missing = [commit.writes[at - 1].key for at in reply[2:]]
            try:
                await self._hydrator.load(missing, end=commit.end, to_write=True)
            except StateCacheError as error:
                commit.fail(error)
        elif verdict == b"UNSURE":
            return await self._looked_up(commit, applied=len(reply) > 2)
        elif not (verdict == b"CONFLICT" and reply[2] - 1 in commit.pinned):
            refused = error_of(commit, reply)
            if not isinstance(refused, (ForeignData, ConfigurationError)):
                await self._certain(commit, refused, lasting=is_lasting(commit, reply))
                return None
            if "equal or smaller" not in refused.reason or monotonic() + commit.pause > commit.end:
                commit.fail(refused)
            await self._wait_a_little(commit, refused)  # somebody's entry is in the way, which a worker will remove
        else:
            commit.unpin()
            note(retries=1)
        return None

    def _check_copies(self, commit: Commit, reply: Any) -> None:
        wanted = 1 if commit.durability == "disk" else self._settings.replicas
        if isinstance(reply, Exception):
            raise DurabilityNotMet(commit.change_id, level=f"{commit.durability}: {reply}", reached=0, wanted=wanted)
        reached = reply[0] if isinstance(reply, list) else reply
        if reached < wanted:
            raise DurabilityNotMet(commit.change_id, level=commit.durability, reached=reached, wanted=wanted)

    async def _refused(self, commit: Commit, error: Exception) -> None:
        """This deals with an error reply: the script was not run, or not beyond its first write."""
        if isinstance(error, NoScriptError):
            return
        refused = refusal(error, commit.redis_keys[0])
        if code_of(error) == "OOM":
            await self._certain(commit, Backpressure(commit.shard, reason=f"Redis is out of memory: {error}"))
            return
        if isinstance(refused, RedisUnavailable) and code_of(error) in AGAIN:
            await self._pause(commit, refused)
            return
        commit.fail(refused, error)

    async def _certain(self, commit: Commit, refused: StateCacheError, *, lasting: bool = False) -> None:
        """This raises a refusal, or returns to ask again where an earlier attempt might still meet another answer.

        Such an attempt is waited for until the server would refuse it: what is refused is never applied afterwards.
        """
        lingers_s = commit.lingers - monotonic()
        if lasting or lingers_s <= 0:
            raise refused
        await async_sleep(lingers_s)

    async def _pause(self, commit: Commit, error: RedisUnavailable) -> None:
        if error.reason in FINAL or monotonic() + commit.pause > commit.end:
            commit.fail(error)
        await self._wait_a_little(commit, error)

    async def _wait_a_little(self, commit: Commit, hindrance: StateCacheError) -> None:
        """This pauses before the next attempt; what was in the way is told where no time is left for one."""
        commit.hindrance = hindrance
        note(retries=1)
        await async_sleep(commit.pause * self._rng.uniform(0.5, 1.0))
        commit.pause = min(commit.pause * 2, 0.25)

    async def _opened(self, commit: Commit) -> None:
        try:
            await self._opener.open(commit.shard, end=commit.end)
            note(retries=1)
        except RedisUnavailable as error:
            await self._pause(commit, error)
        except StateCacheError as error:
            commit.fail(error)

    async def _looked_up(self, commit: Commit, *, applied: bool) -> Committed | None:
        """This finds out whether a repeat was applied long ago; where not, it goes on, pinned to what was there.

        What was there is read first: an earlier attempt that arrives during the search then meets a changed state.
        """
        keys = [write.key for write in commit.written()]
        try:
            current = await self._redis.read(
                [("HMGET", redis_key, "change_id", "op") for redis_key in commit.redis_keys],
                seconds=max(commit.end - monotonic(), 0.001),
            )
            for redis_key, reply in zip(commit.redis_keys, current, strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, redis_key) from reply
            found = await self._durable.lookup(commit.shard, commit.change_id, keys, end=commit.end)
        except (Unavailable, ForeignData, ConfigurationError) as error:
            commit.doubt = commit.doubt or error
            commit.fail(error)
        if found is not None:
            committed = Committed(commit.change_id, *found)
            await self._line.wrote(commit, committed)
            return committed
        if applied:
            raise OutcomeUnknown(commit.change_id, keys=tuple(keys), reason=_NOWHERE_ELSE)
        commit.pin(current)
        note(retries=1)
        return None
