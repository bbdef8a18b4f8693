"""The leases that a client holds: taken and given back in one round trip each, renewed while the client lives.

Every exchange is the script `lease`, under a request of the holder's own: a repeat of it answers as the first did, so
a lost reply neither leaks a lease nor doubles it. What could not be given back ends by itself at its ttl.

    take, queue   OK: held from now on     WAIT: wait to be called, or for the deadline, and queue again
    FENCED        open the shard, again    LATE, no reply   again, on another connection

One task or thread of the client renews all its leases, each at a third of its ttl, on a connection of its own; it is
started by the first lease and ends when it finds none. A renewal that comes to nothing is tried again as long as the
lease is believed in.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from statecache import _process
from statecache.clock import boottime, monotonic
from statecache.core.lock.batches import InBatches
from statecache.core.lock.requests import WITHDRAW_S, LeaseRequests, LeaseScript, OneByOne, request_names
from statecache.errors import LockTimeout, StateCacheError, UsageError
from statecache.lua import parts_of
from statecache.model import Token
from statecache.rules.leases import COMING_S, TTL_S_MIN, Holding, Holdings, Waiting, call_of

if TYPE_CHECKING:
    from statecache.concurrency import Background, Signal
    from statecache.core.epoch.opener import Opener
    from statecache.core.redis.connection import Link
    from statecache.core.redis.pubsub import Subscriptions
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings

_CONFIRM_S, _CONFIRM_AGAIN_S = 1.0, 0.05
"""How long a waiter waits for its subscription to be confirmed, in seconds, and then each time that it asks again."""
_END_S = 0.05
"""How long a caller without time waits for a lease to be given back, or a closing client for a renewal, in seconds."""
_TRY_S = 0.5
"""How long asking may take for a caller who does not wait for the lock, in seconds."""
_SWEEP_S = 0.02
"""Leases that are due within this many seconds are renewed together."""

_logger = logging.getLogger("statecache")


class Leases:
    """The leases of one client, which it takes, renews and gives back."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        redis: RedisTier,
        opener: Opener,
        events: Subscriptions,
    ) -> None:
        self._timeout_s = settings.timeout_s
        self._keys = keys
        self._redis = redis
        self._opener = opener
        self._spelled = LeaseScript(settings, keys, opener.epochs)
        alone, together = (how(self._spelled, redis, settings.timeout_s) for how in (OneByOne, InBatches))
        self._requests = LeaseRequests(keys, redis, opener, alone, together)
        self._events = events
        self._closed = False
        self._links: set[Link] = set()
        self._inherited: list[Link] = []
        self._held = Holdings()
        events.broken.append(self._unheard)
        self.begin_anew(_process.mutex())
        _process.begins_anew_after_fork(self)

    def begin_anew(self, _: AbstractContextManager[Any]) -> None:
        """Forget the leases, which another process holds, and take another name to be called by."""
        for link in self._links:  # kept, for even to collect them could harm the parent
            link.abandon()
            self._inherited.append(link)
        self._links = set()
        for holding in self._held.all():
            holding.inherited = True
        self._held = Holdings()
        self._waiting: dict[str, tuple[Waiting, Signal]] = {}
        self._names = request_names()
        self._renewer: Background | None = None
        self._sooner = self._redis.io.signal()
        self._next = -inf

    @property
    def held(self) -> tuple[Holding, ...]:
        """The leases that this process holds; a forked child has none of its parent's."""
        return self._held.all()

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """The locks that this process waits for."""
        return tuple(waiting for waiting, _ in tuple(self._waiting.values()))

    def lost(self, holding: Holding) -> bool:
        """Return whether somebody else may have the lock by now."""
        return holding.lost(boottime()) or holding.request not in self._held

    def check(self, holding: Holding) -> None:
        """Raise LeaseLost where somebody else may have the lock by now."""
        if self.lost(holding):
            raise holding.lost_error("it is over" if holding.gone else "it was not renewed in time")

    async def take(self, key: str, *, ttl: float, patience: float | None) -> Holding:
        """Lock the key, waiting for at most `patience` seconds (None: for ever), and return the lease.

        Raises LockTimeout, and UsageError where this task or thread has locked the key already.
        """
        owner = self._redis.io.runner()
        for one in self.held:
            if one.key == key and one.owner is owner and not one.lost(boottime()):
                hint = "Use the lease that you have: the lock would wait for itself."
                raise UsageError(f"{key!r} is locked already by this very task or thread", hint=hint)
        shard, request = self._keys.shard(key), next(self._names)
        holding = Holding(key=key, shard=shard, request=request, ttl=ttl, owner=owner)
        begun, wait = monotonic(), patience != 0
        try:
            asking_s = (patience or self._timeout_s) if wait else min(self._timeout_s, _TRY_S)
            answer = await self._requests.grant("queue" if wait else "take", holding, end=begun + asking_s)
            if answer is not None and wait:
                await self._wait_for_turn(holding, begun, patience)
            if answer is None or wait:
                self._held[holding.request] = holding
                self._keep(holding)
        except BaseException as error:  # whatever it is, nothing shall be held by nobody, and no place kept
            self._held.pop(holding.request, None)
            if not isinstance(error, GeneratorExit):  # who is thrown away cannot wait for an answer
                await self._redis.io.beside(lambda: self._requests.withdraw(holding), _END_S)
            raise
        if answer is not None and not wait:
            raise LockTimeout(key, seconds=0, holder=answer.rest[1])
        return holding

    async def _wait_for_turn(self, holding: Holding, begun: float, patience: float | None) -> None:
        """Ask whenever there is a reason to: the waiter was called, the lease in its way ends, or time went by."""
        end = inf if patience is None else begun + patience
        calls = self._keys.events(holding.shard, holding.request.partition(":")[0])
        waiting = Waiting(key=holding.key, request=holding.request, asks_at=begun)
        confirm_s = _CONFIRM_S if patience is None else min(_CONFIRM_S, patience / 4)
        try:
            while True:
                signal = self._redis.io.signal()
                self._waiting[holding.request] = (waiting, signal)
                now = monotonic()
                if waiting.ask_at <= now:
                    bound = now + self._timeout_s if patience is None else max(end, now + 0.01)
                    waiting.asking()
                    heard = await self._events.confirmed(calls, self._heard, end=min(bound, now + confirm_s))
                    confirm_s = confirm_s if heard else _CONFIRM_AGAIN_S
                    answer = await self._requests.grant("queue", holding, end=bound)
                    if answer is None:
                        return
                    now = monotonic()
                    deaf = not (heard and self._events.listens(calls))
                    waiting.answered(int(answer.rest[0]) / 1000, answer.rest[1], now, deaf=deaf)
                if now >= end:
                    raise LockTimeout(holding.key, seconds=patience or 0, holder=waiting.holder)
                await signal.wait(min(waiting.ask_at - now, end - now, COMING_S))
        finally:
            self._waiting.pop(holding.request, None)

    def _heard(self, message: bytes) -> None:
        """Take note of a call, and wake whoever is called; other waiters watch the time by themselves."""
        if self._waiting and (call := call_of(message)) is not None:
            key, request, left_s = call
            now = monotonic()
            for waiting, signal in tuple(self._waiting.values()):
                if waiting.key == key and (waiting.called(request, left_s, now) or left_s < COMING_S):
                    signal.set()

    def _unheard(self) -> None:
        """Take note that calls may have been missed."""
        for waiting, signal in tuple(self._waiting.values()):
            waiting.unheard(monotonic())
            signal.set()

    async def give_back(self, holding: Holding, *, end: float | None = None) -> bool:
        """End the lease, and return whether it stood until then; where Redis is away, raise nothing."""
        stood = not self.lost(holding)
        known = self._held.pop(holding.request, None) is not None and not holding.gone
        holding.gone = True
        if not known:
            return False
        left_s = max(holding.believed_until - boottime(), WITHDRAW_S)
        end = min(monotonic() + self._timeout_s if end is None else end, monotonic() + left_s)
        answered = False
        try:
            answer = await self._requests.ask("withdraw" if holding.may_arrive else "release", holding, end=end)
            answered = True
            return answer.verdict == "OK" or (answer.repeated and stood)
        except StateCacheError as error:
            answered, holding.unreturned = True, True
            _logger.warning("the lease of %r could not be given back and ends by itself: %s", holding.key, error)
            return stood
        finally:
            if not answered:  # cancelled
                await self._redis.io.beside(lambda: self._requests.withdraw(holding), _END_S)

    async def take_away(self, key: str, token: Token, *, end: float) -> bool:
        """End somebody's lease, unless another one has followed it, and return whether it was ended."""
        theirs = Holding(key=key, shard=self._keys.shard(key), request="", ttl=TTL_S_MIN, owner=None, token=token)
        answer = await self._requests.ask("break", theirs, end=end)
        return answer.verdict == "OK" or (answer.repeated and not answer.rest)

    async def release(self, *, end: float | None = None) -> tuple[str, ...]:
        """End all the leases that this client holds, by `end`, and return the keys of those that could not be ended.

        These end by themselves, when their time is up.
        """
        end = monotonic() + WITHDRAW_S if end is None else end
        held = self.held
        for holding in held:
            await self.give_back(holding, end=end)
        return tuple(holding.key for holding in held if holding.unreturned)

    async def close(self) -> None:
        """End the leases, and the waiting for others."""
        self._closed = True
        await self.release()
        self._sooner.set()
        self._unheard()
        if self._renewer is not None:
            await self._renewer.stop(_END_S)
        for link in tuple(self._links):
            await self._hang_up(link)

    def _keep(self, holding: Holding) -> None:
        """Make sure that the lease will be renewed in time."""
        if self._next == -inf or self._renewer is None or not self._renewer.alive:
            self._next = inf
            self._renewer = self._redis.io.background(self._renew_all, name="statecache-leases")
            self._renewer.start()
        elif holding.renew_at < self._next:
            self._sooner.set()

    async def _renew_all(self, renewer: Background) -> None:
        """Renew what is due, until nothing is held; while waiting, refer to no lease.

        `_next` is the moment of the next renewal: minus infinity once renewing ends, and in doubt too late, so that a
        new lease wakes it.
        """
        link: Link | None = None
        while self._renewer is renewer:
            self._sooner, self._next = self._redis.io.signal(), inf
            next_at = min((one.renew_at for one in self.held), default=-inf)
            if self._closed or next_at == -inf:
                self._next = -inf
                if self._closed or not self.held:
                    break
                continue
            self._next = next_at
            if not await self._sooner.wait(next_at - boottime()):
                link = await self._renew([one for one in self.held if one.renew_at <= boottime() + _SWEEP_S], link)
        await self._hang_up(link)

    async def _renew(self, due: Sequence[Holding], link: Link | None) -> Link | None:
        """Renew leases in one pipeline, and return the connection if it can be used again.

        One that could not be renewed is tried again while it is believed in.
        """
        started = boottime()
        for holding in due:
            if holding.lost(started):
                self._lose(holding)
        due = [holding for holding in due if not holding.gone]
        if not due:
            return link
        seconds = max(min(one.ttl / 6 for one in due), 0.02)
        for holding in due:
            holding.unanswered(started + seconds)
        try:
            if link is None or not link.alive:
                link = await self._redis.link(seconds)
                self._links.add(link)
            seconds = max(seconds - (boottime() - started), 0.001)
            calls = [self._spelled.call("renew", one, link, seconds) for one in due]
            replies = await link.scripts(self._spelled.script, calls, seconds=seconds)
            for holding, reply in zip(due, replies, strict=True):
                await self._renewed(holding, parts_of(reply)[0].decode(), started, link)
        except (StateCacheError, ResponseError) as error:
            _logger.info("leases could not be renewed, and it is tried again: %s", error)
            await self._redis.pool.drop_idle()
            await self._hang_up(link)
            return None
        return link

    async def _hang_up(self, link: Link | None) -> None:
        """Close a connection for renewals."""
        if link is not None:
            self._links.discard(link)
            await link.end()

    def _lose(self, holding: Holding) -> None:
        holding.gone = True
        self._held.pop(holding.request, None)

    async def _renewed(self, holding: Holding, verdict: str, started: float, link: Link) -> None:
        if verdict == "OK":
            holding.granted(started)
        elif verdict == "GONE":
            self._lose(holding)
        elif verdict == "FENCED":
            await self._opener.open(holding.shard, end=monotonic() + holding.ttl / 6)
        elif verdict == "LATE":
            await self._redis.leave(link)
