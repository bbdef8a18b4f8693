"""Many commits of one caller in few exchanges: each is a commit of its own, and comes to what it would come to alone.

They are sent in rounds. A round makes one attempt of every commit that has no outcome yet, dozens in one pipeline on
one connection. What the answers ask for is then done once for all that ask for it: a shard is opened, the states that
Redis lacks are loaded a shard at a time, one pause is made. What concerns a single commit (looking it up, a policy to
heed) is carried out as for a commit that goes alone. So a round repeats only what has no outcome, under the same
change_ids, and the time of the caller bounds all of them.

Each commit keeps its identity, its nonce and its times; an exchange that breaks leaves those commits in doubt that went
with it and no others. Where the caller is gone before the end, the outcome of all that was sent, also of what
was applied, is unknown: he has learnt of none of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from statecache.call_notes import note
from statecache.clock import monotonic
from statecache.commit_protocol.decision import Again, Load, OpenShard, Pause, asks_on, hindered, next_step
from statecache.concurrency.batching import REQUESTS_MAX, WEIGHT_MAX
from statecache.core.commit.attempts import SEND_S_MIN, never_sent
from statecache.core.commit.durability_support import COPIED
from statecache.core.epoch.opener import PAUSE_S_MAX
from statecache.core.parts import in_parts
from statecache.errors import RedisUnavailable, StateCacheError, Unavailable
from statecache.redis_errors import FINAL

if TYPE_CHECKING:
    from statecache.commit_protocol.answers import Committed
    from statecache.commit_protocol.commit import Commit
    from statecache.commit_protocol.decision import Next
    from statecache.commit_protocol.in_flight import InFlight
    from statecache.commit_protocol.unknown_outcomes import UnknownOutcomes
    from statecache.core.commit.committer import Committer
    from statecache.core.commit.durability_support import DurabilitySupport
    from statecache.core.epoch.opener import Opener
    from statecache.core.read.hydration import Hydrator
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier

_LOADED_AT_ONCE = 200
"""How many states of a shard are loaded by one query."""


class _Call:
    """One caller's commits: which have no outcome yet, and what these need before the next round."""

    __slots__ = ("closed", "commits", "end", "lacking", "outcomes", "pause_s", "pending")

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = commits
        self.end = commits[0].end
        self.pending = list(commits)
        self.outcomes: dict[str, Committed | StateCacheError] = {}
        self.next_round()

    def next_round(self) -> list[Commit]:
        """Return what has no outcome yet, for a round that begins."""
        pending, self.pending = self.pending, []
        self.closed: dict[int, list[Commit]] = {}
        self.lacking: dict[int, list[Commit]] = {}
        self.pause_s = 0.0
        return pending

    def unlearnt(self) -> list[Commit]:
        """Return the commits of which it is not known that they failed."""
        return [one for one in self.commits if not isinstance(self.outcomes.get(one.change_id), StateCacheError)]


class ManyCommits:
    """The sending of commits of one state each, together."""

    def __init__(
        self, redis: RedisTier, committer: Committer, *, opener: Opener, hydrator: Hydrator,
        support: DurabilitySupport, in_flight: InFlight, unknown_outcomes: UnknownOutcomes,
    ) -> None:  # fmt: skip
        self._redis = redis
        self._committer = committer
        self._opener = opener
        self._hydrator = hydrator
        self._support = support
        self._in_flight = in_flight
        self._unknown_outcomes = unknown_outcomes

    async def commit(self, commits: Sequence[Commit]) -> list[Committed | StateCacheError]:
        """Apply each commit at most once, and return the outcome of each: what it came to, or its error.

        All are at one durability level and have one end. Raises DurabilityRefused, before anything is sent, where these
        settings cannot give the level.
        """
        call, durability = _Call(commits), commits[0].durability
        under_way = self._in_flight.under_way
        for commit in commits:
            under_way[commit.change_id] = commit
        try:
            await self._prepare(call, durability)
            while call.pending:
                await self._round(call)
            if durability == "postgres":
                await self._endure(call)
        except BaseException as error:  # the caller learns nothing of any of them
            for commit in call.unlearnt():
                self._unknown_outcomes.note(commit, error)
            raise
        finally:
            for commit in commits:
                under_way.pop(commit.change_id, None)
        if self._in_flight.doubted and (applied := call.unlearnt()):
            await self._committer.look_for_losses(applied)
        return [call.outcomes[commit.change_id] for commit in commits]

    async def _prepare(self, call: _Call, durability: str) -> None:
        """Do what comes before the first round; where a server cannot be had for a shard, none of its commits is sent.

        Raises DurabilityRefused where these settings cannot give the level.
        """
        failed: dict[int, Unavailable] = {}
        for shard in dict.fromkeys(commit.shard for commit in call.commits):
            try:
                await self._committer.prepare(durability, shard, end=call.end)
            except Unavailable as error:
                failed[shard] = error
        call.pending = [one for one in call.commits if one.shard not in failed]
        for one in call.commits:
            if one.shard in failed:
                await self._fail(call, one, failed[one.shard])

    async def _round(self, call: _Call) -> None:
        """Make one attempt of all that is pending, then do what the answers ask for."""
        for some in _exchanges(call.next_round()):
            if monotonic() + SEND_S_MIN > call.end:
                for commit in some:
                    error = commit.lost_answer or commit.last_error or never_sent(commit)
                    await self._fail(call, commit, error)
            else:
                await self._exchange(call, some)
        repeats = bool(call.pending or call.closed)  # what only had to be loaded is no repetition
        for commits in call.lacking.values():
            for part in in_parts(commits, _LOADED_AT_ONCE):
                keys = [commit.writes[0].key for commit in part]
                await self._serve(call, part, partial(self._hydrator.load, keys, to_write=True))
        for shard, commits in call.closed.items():
            await self._serve(call, commits, partial(self._opener.open, shard))
        if call.pending and (repeats or call.pause_s):
            note(retries=1)
        if call.pending and call.pause_s:
            await self._redis.io.sleep(call.pause_s)

    async def _exchange(self, call: _Call, commits: Sequence[Commit]) -> None:
        """Make one attempt of each commit in one exchange, and take up the answers."""
        sent: list[Commit] = []
        try:
            link = await self._redis.pool.take(max(call.end - monotonic(), 0.001))
            try:
                await self._support.check_server(commits[0].durability, link, end=call.end)
                answers = await self._answers(link, commits, sent)
            except RedisUnavailable as error:
                for commit in sent:
                    commit.unanswered(error)
                await self._redis.pool.drop_idle()
                raise
            finally:
                self._redis.pool.give(link)
        except StateCacheError as error:
            for commit in commits:
                await self._carry_out(call, commit, hindered(commit, error), ())
        else:
            for commit, replies in zip(commits, answers, strict=True):
                await self._carry_out(call, commit, next_step(commit, replies[0], now=monotonic()), replies)

    async def _answers(self, link: Link, commits: Sequence[Commit], sent: list[Commit]) -> list[list[Any]]:
        """Return the replies that decide about each commit; `sent` collects what may have been executed."""
        attempts, commands, durability = self._committer.attempts, list[Any](), commits[0].durability
        left = max(commits[0].end - monotonic(), 0.001)
        seconds = left if left < 0.2 else left * 0.4
        until = monotonic() + seconds
        for commit in commits:
            sent.append(commit)
            commands.append(attempts.call(link, commit, seconds))
            link.knows(attempts.script, True)  # it goes with the first of them, which runs before the others
        replies = await link.run(commands, seconds=seconds)
        answers = [[await attempts.answered(link, *one)] for one in zip(commits, replies, strict=True)]
        applied = [one for one in answers if isinstance(one[0], list) and one[0][1] in (b"OK", b"DUP", b"MUTE")]
        if durability in COPIED and applied:
            seconds = max(until - monotonic(), 0.001)
            copies = await link.run([self._support.wait_command(durability, round(seconds * 800))], seconds=seconds)
            for answer in applied:
                answer += copies
        for answer in answers:
            await attempts.noted(link, answer[0])
        return answers

    async def _carry_out(self, call: _Call, commit: Commit, step: Next, replies: Sequence[Any]) -> None:
        """Do for one commit what its answer asks for, or note it as a need of the next round."""
        match step:
            case Load():
                call.lacking.setdefault(commit.shard, []).append(commit)
                return
            case OpenShard():
                call.closed.setdefault(commit.shard, []).append(commit)
                return
            case Again():
                call.pending.append(commit)
                return
            case Pause(error):
                await self._pause(call, commit, error)
                return
        try:
            committed = await self._committer.carry_out(commit, step, replies)
        except StateCacheError as error:
            await self._failed(call, commit, error)
            return
        if committed is None:
            call.pending.append(commit)
        else:
            call.outcomes[commit.change_id] = committed

    async def _pause(self, call: _Call, commit: Commit, error: StateCacheError) -> None:
        error = commit.hindered(error, now=monotonic())
        if commit.backoff.outlasts(call.end):
            await self._fail(call, commit, error)
        else:
            call.pause_s = max(call.pause_s, commit.backoff.take())
            call.pending.append(commit)

    async def _serve(self, call: _Call, commits: Sequence[Commit], work: Callable[..., Awaitable[Any]]) -> None:
        """Do once what several commits need, in half of the time that is left, for others need theirs.

        Where that fails for want of a server or of time, they go with the next round, for some may have been served.
        A gate that is refused long before the end stays closed, whoever waits; whose answer is lost waits nevertheless.
        """
        now = monotonic()
        left = max(call.end - now, 0.001)
        end = now + (left / 2 if left > 0.2 else left)
        try:
            await work(end=end)
        except StateCacheError as error:
            final = not isinstance(error, Unavailable) or error.reason in FINAL or left <= 0.2
            refused = isinstance(error, Unavailable) and error.reason == "epoch" and monotonic() + PAUSE_S_MAX < end
            for commit in commits:
                if (final or refused) and not asks_on(commit, error):
                    await self._fail(call, commit, error)
                else:
                    await self._pause(call, commit, error)
        else:
            call.pending += commits

    async def _fail(self, call: _Call, commit: Commit, error: StateCacheError) -> None:
        try:
            commit.fail(error)
        except StateCacheError as failed:
            await self._failed(call, commit, failed)

    async def _failed(self, call: _Call, commit: Commit, error: StateCacheError) -> None:
        call.outcomes[commit.change_id] = error
        await self._committer.failed(commit, error)

    async def _endure(self, call: _Call) -> None:
        """Wait until Postgres holds what is applied."""
        for commit in call.unlearnt():
            committed: Any = call.outcomes[commit.change_id]
            try:
                call.outcomes[commit.change_id] = await self._committer.endured(commit, committed)
            except StateCacheError as error:
                await self._failed(call, commit, error)


def _exchanges(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    """Yield the commits as they go together: dozens, and not more bytes than one exchange carries."""
    some: list[Commit] = []
    weight = 0
    for commit in commits:
        more = commit.writes[0].weight
        if some and (len(some) == REQUESTS_MAX or weight + more > WEIGHT_MAX):
            yield some
            some, weight = [], 0
        some.append(commit)
        weight += more
    if some:
        yield some
