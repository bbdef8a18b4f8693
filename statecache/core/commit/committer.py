"""The one write path: a commit is one run of one script, repeated until its outcome is known.

A commit has one change_id from its birth to its end, whatever happens in between. A lost reply is never "not
applied": the same change_id is sent again, and the script either finds it in the state's `recent` and answers as the
first time, or applies it. Where `recent` no longer reaches back far enough the stream and Postgres are asked. Only
when none of that can be had in time is the outcome unknown, and said to be so.

What each answer asks for stands in `commits.decision`; here it is carried out.

Every attempt tells the server when it will be given up. One that was held up on its way is refused, so it cannot be
executed when the state's `recent` has long forgotten the attempt that came after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from statecache.call_notes import note
from statecache.clock import monotonic
from statecache.commit_protocol.answers import Committed
from statecache.commit_protocol.commit import Commit
from statecache.commit_protocol.decision import (
    Again,
    Applied,
    Fail,
    HeedPolicy,
    Load,
    LookUp,
    Next,
    OpenShard,
    Pause,
    Refuse,
    Wait,
    hindered,
    next_step,
)
from statecache.concurrency import SILENCE_S, NoThread
from statecache.core.commit.attempts import SEND_S_MIN, Attempts, never_sent
from statecache.core.commit.batches import BatchedAttempts, attempt_s
from statecache.core.commit.durable import HELD, PASSED
from statecache.core.commit.repeats import Repeats
from statecache.core.pool import LEFT_S
from statecache.error_facts import unended
from statecache.errors import (
    Forked,
    LimitExceeded,
    Lost,
    OutcomeUnknown,
    Quarantined,
    RedisUnavailable,
    StateCacheError,
)
from statecache.model import ABSENT, COMMIT_BYTES_MAX

if TYPE_CHECKING:
    from statecache.commit_protocol.in_flight import InFlight
    from statecache.commit_protocol.unknown_outcomes import UnknownOutcomes
    from statecache.core.commit.durability_support import DurabilitySupport
    from statecache.core.commit.durable import Ask, Durable
    from statecache.core.commit.lost import Losses
    from statecache.core.epoch.opener import Opener
    from statecache.core.lock.policies import Policies
    from statecache.core.read.hydration import Hydrator
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.core.redis.tracking import TrackedConnection
    from statecache.keys import KeySpace
    from statecache.model import Write
    from statecache.near import Near
    from statecache.rules.leases import Locks
    from statecache.settings import Settings

_LOOK_S = 0.25
"""How long Postgres is waited for at most ahead of the first attempt, in seconds."""
_ELSEWHERE = "it is applied in a Redis whose epoch has ended, and Postgres has been flushed past it without it"


def _sent_late(error: RedisUnavailable, waited: float, left: float) -> RedisUnavailable:
    """Return the error of an attempt that was not answered; of one that had waited for long here, with that."""
    if waited < max(LEFT_S, left):
        return error
    here = f"it was sent with {left:.2g} s left, having waited {waited:.2g} s for a connection in this process"
    return RedisUnavailable(error.reason, detail=f"{unended(error.detail)}; {here}", hint=error.hint)


def new_change_id() -> str:
    """Return a new change_id: 96 random bits as 24 hexadecimal digits."""
    return os.urandom(12).hex()


_SPENT: dict[type[Next], str] = {
    LookUp: "looking it up",
    OpenShard: "opening its shard",
    Load: "loading states from Postgres",
    HeedPolicy: "reading policies",
}
"""What a commit's time is spent on between two attempts."""


class Committer:
    """The commits of a client: it applies each, and returns its outcome."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        redis: RedisTier,
        *,
        opener: Opener,
        hydrator: Hydrator,
        near: Near,
        durable: Durable,
        support: DurabilitySupport,
        tracked: TrackedConnection,
        unknown_outcomes: UnknownOutcomes,
        in_flight: InFlight,
        losses: Losses,
        policies: Policies,
    ) -> None:
        self._keys = keys
        self._redis = redis
        self._durable = durable
        self._support = support
        self._in_flight = in_flight
        self.attempts = Attempts(settings, keys, redis, support, opener.epochs)
        self._batches = BatchedAttempts(redis, self.attempts)
        self._repeats = Repeats(
            redis, self.attempts, durable=durable, support=support, tracked=tracked, in_flight=in_flight,
            epochs=opener.epochs,
        )  # fmt: skip
        self._opener = opener
        self._policies = policies
        self._hydrator = hydrator
        self._near = near
        self._unknown_outcomes = unknown_outcomes
        self._losses = losses

    def new(
        self, writes: list[Write], shard: int, *, durability: str, actor: str, reason: str, end: float,
        change_id: str | None = None, locks: Locks | None = None,
    ) -> Commit:  # fmt: skip
        """Return a commit of writes to one group, not yet sent; a change_id that was given marks it as a repeat."""
        stem = self._keys.state_stem(shard)
        if len(writes) > 1 and (size := sum(write.weight for write in writes)) > COMMIT_BYTES_MAX:
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
            redis_keys=[stem + write.key for write in writes],
            repeat=change_id is not None,
            named=change_id is not None,
            locks=locks,
        )

    async def commit(self, commit: Commit) -> Committed:
        """Apply the commit at most once, and return its outcome at the durability that was asked for."""
        self._in_flight.under_way[commit.change_id] = commit
        try:
            if commit.durability != "memory":
                await self.prepare(commit.durability, commit.shard, end=commit.end)
            if commit.repeat:
                self._unknown_outcomes.take_over(commit)
                commit.applied_at = self._in_flight.position_of(commit.change_id, commit.keys[0])
            committed = await self._apply(commit)
            if commit.durability != "memory":
                committed = await self.endured(commit, committed)
        except BaseException as error:  # its caller may never learn what became of it
            await self.failed(commit, error)
            raise
        finally:
            self._in_flight.under_way.pop(commit.change_id, None)
        if self._in_flight.doubted:
            await self.look_for_losses([commit])
        return committed

    async def look_for_losses(self, commits: Sequence[Commit]) -> None:
        """Look for lost commits, where some are doubted; who is cancelled meanwhile never learns of his."""
        try:
            await self._losses.noticed(end=commits[0].end)
        except BaseException as error:  # these are applied, and their caller learns nothing of it
            for commit in commits:
                self._unknown_outcomes.note(commit, error)
            raise

    async def commit_watched(self, commit: Commit, link: Link, leave: Callable[[], Any]) -> Committed:
        """Apply a prepared commit in MULTI / EXEC, on a connection that watches the commit's states.

        `leave` gives that connection back, so that repeating outside of MULTI, or waiting, does not keep others from
        theirs.
        """
        self._in_flight.under_way[commit.change_id] = commit
        try:
            replies = await self.attempts.send_watched(commit, link)
            await self._redis.io.called(leave())
            committed = await self._outcome(commit, replies) if replies else None
            if committed is None:
                note(retries=1)
                committed = await self._apply(commit)
            committed = await self.endured(commit, committed)
        except BaseException as error:  # its caller may never learn what became of it
            await self.failed(commit, error)
            raise
        finally:
            self._in_flight.under_way.pop(commit.change_id, None)
        if self._in_flight.doubted:
            await self.look_for_losses([commit])
        return committed

    async def failed(self, commit: Commit, error: BaseException) -> None:
        """Note what became of a commit that raises; a lost one is recorded, for it must never be applied again."""
        self._unknown_outcomes.note(commit, error)
        if not isinstance(error, GeneratorExit):  # who is thrown away cannot wait for an answer
            await self._give_back(commit)
        if isinstance(error, Lost) and error.position is not None:
            seconds = max(commit.end - monotonic(), 0.001)
            await self._losses.met(commit.shard, error.position, commit.change_id, commit.keys, seconds=seconds)

    async def prepare(self, durability: str, shard: int, *, end: float) -> None:
        """Refuse a durability level that these settings cannot give; listen for the shard's watermark if needed."""
        self._support.check(durability)
        if durability == "postgres":
            await self._durable.watch(shard, end=end)

    async def copied(self, commit: Commit) -> bool:
        """Return True once copies of a change that is known to be applied are counted; False where it is nowhere."""
        return await self._repeats.copied(commit)

    async def endured(self, commit: Commit, committed: Committed) -> Committed:
        """Wait until Postgres holds the commit; apply it again where it was lost with its Redis.

        Raises Lost where the lineage in which it is applied goes on without it, or without a part of it.
        """
        if commit.durability != "postgres":
            return committed
        keys = tuple(write.key for write in commit.written())
        while not await self._is_durable(commit, committed, keys):
            commit.repeat, lost = True, committed.position
            self._in_flight.withdraw(commit.shard, lost)
            committed = await self._apply(commit)
            if committed.position == lost:
                raise OutcomeUnknown(commit.change_id, keys=keys, reason=_ELSEWHERE)
        return committed

    async def _is_durable(self, commit: Commit, committed: Committed, keys: tuple[str, ...]) -> bool:
        """Wait for Postgres, and return whether it holds the commit; raise OutcomeUnknown where waiting fails.

        Of one that may have been applied long ago Postgres itself has to say so, if it answers: it may have gone back.
        """
        position = committed.position
        ask: Ask = "unless it is away" if committed.repeated and commit.named else "if doubtful"
        try:
            ended = await self._durable.wait(commit.shard, position, commit.change_id, keys, end=commit.end, ask=ask)
        except (Forked, Quarantined, OutcomeUnknown):
            raise
        except (StateCacheError, NoThread) as error:
            raise OutcomeUnknown(commit.change_id, keys=keys, reason=str(error)) from error
        if ended <= PASSED:
            raise Lost(keys[0], commit.change_id, position=position, epoch=position.epoch)
        return ended == HELD

    async def _apply(self, commit: Commit) -> Committed:
        if len(commit.writes) > 1 and not commit.repeat:
            await self._look_first(commit)
        while True:
            seconds = commit.end - monotonic()
            if seconds < SEND_S_MIN:
                commit.fail(commit.lost_answer or commit.last_error or never_sent(commit))
            if commit.durability == "postgres" and not commit.passes:
                committed = await self._applied_batched(commit, seconds)
                if committed is not None:
                    return committed
                continue
            link = await self._repeats.link_for(commit, seconds)
            if link is None:
                continue
            left = commit.end - monotonic()
            if left < SEND_S_MIN:
                self._redis.pool.give(link)
                continue
            try:
                replies = await self.attempts.send(link, commit, left)
            except RedisUnavailable as error:
                told = _sent_late(error, commit.waited_s, left)
                commit.unanswered(told)
                await self._redis.pool.drop_idle()
                await self._give_back(commit)
                await self._repeats.take(commit, hindered(commit, told))
                continue
            finally:
                self._redis.pool.give(link)
            await self._give_back(commit)
            committed = await self._outcome(commit, replies)
            if committed is not None:
                return committed

    async def _applied_batched(self, commit: Commit, seconds: float) -> Committed | None:
        """Make one attempt in an exchange that is shared with other callers' commits; return None to try again."""
        try:
            replies = await self._batches.send(commit, seconds)
        except StateCacheError as error:
            step, before = hindered(commit, error), commit.last_error
            if isinstance(step, Pause) and before is not None and attempt_s(seconds) < SILENCE_S:
                step = Pause(before)  # after so short a time nothing is known of what hinders it
            await self._repeats.take(commit, step)
            return None
        return await self._outcome(commit, replies)

    async def _opened(self, commit: Commit) -> None:
        try:
            await self._opener.open(commit.shard, end=commit.end)
            note(retries=1)
        except StateCacheError as error:
            await self._repeats.take(commit, hindered(commit, error))

    async def _load(self, commit: Commit, keys: Sequence[str]) -> None:
        """Load states from Postgres; at first, and where the commit goes alone, it takes their install along.

        The script takes for new what Postgres holds nothing of, as far as it still proves to be.
        """
        try:
            looked = None if commit.loaded else await self._hydrator.look(keys, end=commit.end)
            if looked is not None and not commit.repeat and not looked.known.intersection(keys):
                commit.found_absent(keys, looked.epoch, looked.flushed)
            elif looked is None or commit.durability == "postgres":
                await self._hydrator.load(keys, end=commit.end, to_write=True)
            else:
                commit.install = await self._hydrator.load_ahead(keys, looked, end=commit.end)
            commit.loaded = True
        except StateCacheError as error:
            await self._repeats.take(commit, hindered(commit, error))

    async def _look_first(self, commit: Commit) -> None:
        """Ask Postgres for states that are to be new and of which nothing is known here: Redis would lack them.

        That spares an attempt which could only say so. A commit of one state does without: of many that want to make
        the same one, all but the first are refused by Redis alone. Whatever hinders it, the attempt is made.
        """
        keys = [
            write.key for write in commit.writes
            if write.expected == ABSENT and not write.assume_new and not self._near.epoch_of(write.key)
        ]  # fmt: skip
        if keys:
            with suppress(StateCacheError):
                looked = await self._hydrator.look(keys, end=min(commit.end, monotonic() + _LOOK_S))
                commit.found_absent(looked.unknown(keys), looked.epoch, looked.flushed)

    async def _give_back(self, commit: Commit) -> None:
        """Give back the tokens of an install that the last attempt took along and that was not carried out."""
        install, commit.install = commit.install, None
        if install is not None:
            await self._hydrator.give_back(install)

    async def _outcome(self, commit: Commit, replies: Sequence[Any]) -> Committed | None:
        """Do what the script's answer asks for: return the result, raise the error, or return None to try again."""
        return await self.carry_out(commit, next_step(commit, replies[0], now=monotonic()), replies)

    async def carry_out(self, commit: Commit, step: Next, replies: Sequence[Any]) -> Committed | None:
        """Do what a step says: return the result, raise the error, or return None to try again."""
        if isinstance(step, Applied):
            return await self._repeats.acknowledge(commit, step.committed, replies)
        began = monotonic()
        try:
            match step:
                case LookUp(applied, position):
                    return await self._repeats.look_up(commit, applied=applied, position=position)
                case OpenShard():
                    await self._opened(commit)
                case Load(keys):
                    await self._load(commit, keys)
                case HeedPolicy(found):
                    await self._policies.heed(commit, found)
                    note(retries=1)
                case Again() | Pause() | Wait() | Refuse() | Fail():
                    await self._repeats.take(commit, step)
            return None
        finally:
            commit.spend(_SPENT.get(type(step), "between attempts"), monotonic() - began)
