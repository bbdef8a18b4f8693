"""Claims: who runs a step. One lease for each, taken before the intent is written and held until the step is over.

Whoever holds the lease runs the step; nobody asks a clock of the server whether an agent is dead:

    taken      before the intent, now or not at all: whoever does not get it waits for the result
    renewed    at a third of its ttl, which is half of `step_claim_s`, by a thread with a connection and an event loop
               of its own: a function that blocks its client's loop, or a busy pool, keeps no claim from being renewed
    lost       by an outage, a failover, a clock that is set forward: taken again as soon as that can be done, unless
               somebody else has it. Taking again and renewing are one request, which may be repeated at any time
    free       an intent whose claim is free may still be a living agent's who is about to take it again. So whoever
               finds it free gives it back and watches: only where it is free again after the other half of
               `step_claim_s`, in which the server has answered throughout, its agent is taken for dead. A client
               goes on watching where an earlier call of its own ended, so that many short ones get there too
    closed     a client that is closed goes on renewing the claims of steps that still run, until they end

An agent that reaches no server for longer than `step_claim_s` while others do, or that is stopped for as long, is taken
for dead. It cannot be told from one that is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import boottime, monotonic
from statecache.core.lock.batches import InBatches
from statecache.core.lock.requests import LeaseRequests, LeaseScript, request_names
from statecache.errors import StateCacheError
from statecache.lua import parts_of
from statecache.rules.leases import Holding, Holdings
from statecache.rules.steps import Watch, claim_of

if TYPE_CHECKING:
    from statecache.concurrency import Background
    from statecache.core.epoch.opener import Opener
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.rules.steps import StepRecord
    from statecache.settings import Settings

_END_S = 0.05
"""How long a caller who has no time left waits for a claim to be given back, in seconds."""
_RELEASE_S = 0.3
"""How long giving a claim back may take, in seconds; what is not given back ends by itself."""
_ATTEMPT_S_MIN = 0.05
_WATCHES_MAX = 1000
"""How many abandoned steps are watched at once; for the oldest, a later call begins to watch anew."""
_SWEEP_S = 0.02
"""Claims that are due within this many seconds are renewed together."""
_logger = logging.getLogger("statecache")


class Claims:
    """The claims of one client."""

    def __init__(self, settings: Settings, keys: KeySpace, redis: RedisTier, opener: Opener) -> None:
        self.silent_s = settings.step_claim_s / 2
        self._ttl = settings.step_claim_s / 2
        self._timeout_s = settings.timeout_s
        self._keys = keys
        self._redis = redis
        self._spelled = LeaseScript(settings, keys, opener.epochs)
        batches = InBatches(self._spelled, redis, settings.timeout_s)
        self._requests = LeaseRequests(keys, redis, opener, batches, batches)
        self._closing = False
        self._links: set[Link] = set()
        self._inherited: list[Link] = []
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget the claims, which another process holds."""
        self._mutex = mutex
        self._names = request_names()
        self._held = Holdings()
        self._watches: dict[str, Watch] = {}
        self._keeper: Background | None = None
        self._idle_until = -inf
        self._closed = threading.Event()
        for link in self._links:
            link.abandon()
            self._inherited.append(link)
        self._links = set()

    @property
    def held(self) -> tuple[Holding, ...]:
        """The claims that this process holds."""
        return self._held.all()

    def of(self, record_key: str) -> Claim:
        """Return the claim of a step, not yet taken."""
        return Claim(self, record_key)

    def has(self, record_key: str) -> bool:
        """Return whether this very task or thread has the claim of a step."""
        name, owner = claim_of(record_key), self._redis.io.runner()
        return any(one.key == name and one.owner is owner for one in self.held)

    async def take(self, record_key: str, *, end: float) -> Holding | None:
        """Take a claim without waiting; return None where somebody has it."""
        name = claim_of(record_key)
        shard, request = self._keys.shard(name), next(self._names)
        holding = Holding(key=name, shard=shard, request=request, ttl=self._ttl, owner=self._redis.io.runner())
        try:
            if await self._requests.grant("take", holding, end=end) is not None:
                return None
        except BaseException as error:  # cancelled; after a fault nobody is kept waiting: what was taken ends by itself
            if not isinstance(error, (Exception, GeneratorExit)):
                await self._redis.io.beside(lambda: self._requests.withdraw(holding), _END_S)
            raise
        with self._mutex:
            self._held[request] = holding
            if self._keeper is None or not self._keeper.alive:
                self._keeper = self._redis.io.thread(self._keep, name="statecache-claims")
                self._keeper.start()
        return holding

    def watch_of(self, record_key: str) -> Watch:
        """Return the watch over a step that an earlier call has begun, or a new one."""
        with self._mutex:
            return self._watches.get(record_key) or Watch(self.silent_s)

    def keep(self, record_key: str, watch: Watch) -> None:
        """Keep a watch for later calls."""
        with self._mutex:
            self._watches[record_key] = watch
            if len(self._watches) > _WATCHES_MAX:
                del self._watches[next(iter(self._watches))]

    def drop(self, holding: Holding) -> bool:
        """Stop renewing a claim, and return whether an attempt to renew it may still be on its way."""
        with self._mutex:
            self._held.pop(holding.request, None)
            return holding.may_arrive

    async def give_back(self, holding: Holding) -> None:
        """Give a claim back; where that fails, it ends by itself."""
        verb = "withdraw" if self.drop(holding) else "release"
        answered = False
        try:
            await self._requests.ask(verb, holding, end=monotonic() + min(_RELEASE_S, self._timeout_s))
            answered = True
        except StateCacheError as error:
            answered = True
            _logger.info("the claim of %r could not be given back and ends by itself: %s", holding.key, error)
        finally:
            if not answered:  # cancelled
                await self._redis.io.beside(lambda: self._requests.withdraw(holding), _END_S)

    async def close(self) -> None:
        """Stop the renewing, unless steps still run: then it stops with the last of them."""
        with self._mutex:
            self._closing, keeper = True, self._keeper
            if self._held or keeper is None:
                return
        self._closed.set()
        await keeper.stop()

    async def _keep(self, keeper: Background) -> None:
        """Renew what is due, until nothing has run for a while."""
        link: Link | None = None
        while (turn := self._due(keeper)) is not None:
            due, wait_s = turn
            if due:
                link = await self._renewed(due, link)
            elif self._closed.is_set():
                await self._redis.io.sleep(wait_s)
            else:
                self._closed.wait(wait_s)
        await self._hang_up(link)

    def _due(self, keeper: Background) -> tuple[list[Holding], float] | None:
        """Return the claims to renew now and the seconds until the next are due; None where renewing ends.

        A claim that is taken meanwhile is not due before that time is over.
        """
        with self._mutex:
            if self._keeper is not keeper:
                return None
            now, held = boottime(), self._held.all()
            if held:
                self._idle_until = now + self._ttl
            elif self._closing or now >= self._idle_until:
                self._keeper = None
                return None
            due = [one for one in held if one.renew_at <= now + _SWEEP_S]
            for one in due:
                one.may_arrive = True
            next_at = min((one.renew_at for one in held), default=now + self._ttl)
            return due, max(min(next_at - now, self._ttl / 3), 0.0)

    async def _renewed(self, due: Sequence[Holding], link: Link | None) -> Link | None:
        """Renew claims in one pipeline, or take them again; return the connection if it can be used again.

        Claims that could not be renewed are tried again soon, with a new connection: that has twice as long, for a
        machine that is busy takes its time.
        """
        share = 3 if link is None else 6
        seconds, started = max(self._ttl / share, _ATTEMPT_S_MIN), boottime()
        for one in due:
            one.unanswered(started + seconds)
        try:
            if link is None or not link.alive:
                link = await self._redis.link(seconds)
                self._links.add(link)
            calls = [self._spelled.call("take", one, link, seconds) for one in due]
            replies = await link.scripts(self._spelled.script, calls, seconds=seconds)
        except (StateCacheError, ResponseError) as error:
            _logger.info("claims of steps could not be renewed, and it is tried again: %s", error)
            await self._hang_up(link)
            return None
        verdicts = [parts_of(reply)[0].decode() for reply in replies]
        for one, verdict in zip(due, verdicts, strict=True):
            if verdict == "OK":
                one.granted(started)
        if {"FENCED", "LATE"} & {*verdicts}:  # it may be no primary any more, or its time is to be asked for anew
            await self._hang_up(link)
        return link

    async def _hang_up(self, link: Link | None) -> None:
        if link is not None:
            self._links.discard(link)
            await link.close()


class Claim:
    """The claim of one step, for one call, which takes it, watches it, gives it back."""

    def __init__(self, claims: Claims, record_key: str) -> None:
        self._claims = claims
        self._record_key = record_key
        self._holding: Holding | None = None
        self._watch = claims.watch_of(record_key)
        self._abandoned = ""
        self.is_anothers = False

    @property
    def pause_s_max(self) -> float:
        """The longest time between two looks at the record, in seconds."""
        return self._claims.silent_s / 4

    @property
    def is_callers(self) -> bool:
        """Whether it was another call's of this very task or thread, which runs the step."""
        return self.is_anothers and self._claims.has(self._record_key)

    def covers(self, record: StepRecord | None, change_id: str) -> bool:
        """Return whether this call may continue the step: it has the claim, and nobody else may still run the step."""
        begun = record is not None and record.status == "intent"
        return self._holding is not None and (not begun or change_id == self._abandoned)

    async def take(self, record: StepRecord | None, change_id: str, *, end: float) -> bool:
        """Try to take the claim to continue from that record, and return whether that is allowed now.

        A step that somebody else began is continued only once its claim has been free for long enough.
        """
        now, begun = monotonic(), record is not None and record.status == "intent"
        watched = begun and self._watch.goes_on(change_id, now)
        if watched and not self._watch.is_over:
            return False
        holding, self._holding = self._holding, None
        holding = holding or await self._claims.take(self._record_key, end=end)
        self.is_anothers = holding is None
        if holding is None:
            self._watch.end()
        elif begun and not (watched and self._watch.saw(monotonic() - now)):
            await self._claims.give_back(holding)
            if not watched:
                self._watch.begin(change_id, monotonic())
                self._claims.keep(self._record_key, self._watch)
        else:
            self._holding = holding
            self._abandoned = change_id if begun else ""
        return self._holding is not None

    async def give_back(self) -> None:
        """Give the claim back, if this call has it."""
        holding, self._holding = self._holding, None
        if holding is not None:
            await self._claims.give_back(holding)

    def drop(self) -> None:
        """Let the claim end by itself."""
        holding, self._holding = self._holding, None
        if holding is not None:
            self._claims.drop(holding)
