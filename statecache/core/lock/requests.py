"""Asking the lease script: every request is repeated until it is answered, and a repeat answers as the first did.

How one attempt is sent is an `Exchange`: alone, or in a batch with those of others (`lock.batches`). Withdrawals go in
batches always: of many that give up at one moment each would wait for a connection until its time is over.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from redis.exceptions import ResponseError

from statecache.backoff import LATE_S, Backoff
from statecache.clock import boottime, monotonic
from statecache.errors import LockTimeout, RedisUnavailable, StateCacheError
from statecache.lua import parts_of, script
from statecache.redis_errors import AGAIN, DEMOTED, FINAL, code_of, found_at, refusal
from statecache.rules.leases import COMING_S, PLACE_S, WAITERS_MAX, Holding, shown_holder
from statecache.settings import Settings, writer_of

if TYPE_CHECKING:
    from statecache.core.epoch.newest_epochs import NewestEpochs
    from statecache.core.epoch.opener import Opener
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace

_GRACE_S = 5.0
"""How long beyond an attempt's own time a withdrawal is remembered, in seconds."""
WITHDRAW_S = 1.0
"""How long giving back may take for a caller who gave up, or closes, in seconds; what is left ends by itself."""
_UNAWAITED_S = PLACE_S / 2
"""How long a withdrawal may take that nobody waits for, in seconds: where many are sent at once, others come first."""
_OF_A_TOKEN = ("renew", "break")
_LIMITS = f"{PLACE_S * 1000:.0f} {COMING_S * 1000:.0f} {WAITERS_MAX}"


class Answer(NamedTuple):
    """What the script answered, and when that attempt was sent, on the clock that counts suspend.

    `repeated` says that an earlier attempt had no answer: it may have been executed too.
    """

    verdict: str
    rest: list[str]
    started: float
    repeated: bool


class LeaseScript:
    """The lease script, and how a request is spelled for it."""

    def __init__(self, settings: Settings, keys: KeySpace, epochs: NewestEpochs) -> None:
        self.script = script("lease")
        self.epochs = epochs
        self._keys = keys
        self._fence = settings.fence
        self._withdrawn_ms = round((settings.timeout_s + _GRACE_S) * 1000)
        self._settings = settings

    def call(self, verb: str, holding: Holding, link: Link, attempt_s: float) -> tuple[Sequence[str], Sequence[Any]]:
        """Return the script's KEYS and ARGV."""
        keys, shard = self._keys, holding.shard
        names = keys.meta(shard), keys.leases(shard), keys.waiters(shard), keys.events(shard)
        late_ms = int((monotonic() + attempt_s) * 1000 + link.ahead_ms) + 1
        token = str(holding.token) if verb in _OF_A_TOKEN else ""
        holder = shown_holder(writer_of(self._settings))
        lasts_ms = self._withdrawn_ms if verb == "withdraw" else round(holding.ttl * 1000)
        known = self.epochs.of(shard)
        fence = f"{self._fence} {known}" if known else self._fence
        return names, (
            fence, verb, holding.key, holding.request, token, holder, lasts_ms, late_ms, _LIMITS
        )  # fmt: skip


class Exchange(Protocol):
    """How one attempt of a request is sent."""

    async def send(self, verb: str, holding: Holding, seconds: float) -> list[str]:
        """Return the script's answer; raise ResponseError or RedisUnavailable."""


class OneByOne:
    """An exchange for each attempt, on a connection of the pool."""

    def __init__(self, spelled: LeaseScript, redis: RedisTier, timeout_s: float) -> None:
        self._spelled = spelled
        self._redis = redis
        self._timeout_s = timeout_s

    async def send(self, verb: str, holding: Holding, seconds: float) -> list[str]:
        """Return the script's answer; raise ResponseError or RedisUnavailable."""
        end, attempt_s = monotonic() + seconds, attempt_of(seconds, self._timeout_s)
        link = await self._redis.pool.take(seconds)
        attempt_s = min(attempt_s, max(end - monotonic(), 0.001))
        try:
            keys, arguments = self._spelled.call(verb, holding, link, attempt_s)
            reply = parts_of(await link.script(self._spelled.script, keys, arguments, seconds=attempt_s))
            if reply[0] == b"LATE" or reply[1:] == [b"behind"]:
                await link.close()  # the next one asks for the server's time anew, and leads to where the address does
        except RedisUnavailable:
            await self._redis.pool.drop_idle()
            raise
        except ResponseError as error:
            if code_of(error) in DEMOTED:
                await self._redis.leave(link)
            raise
        finally:
            self._redis.pool.give(link)
        return [part.decode("utf-8", "replace") for part in reply]


def attempt_of(seconds: float, timeout_s: float) -> float:
    """Return how long one attempt may take, in seconds: not all of the time that is left, so that there is another."""
    most_s = min(seconds, timeout_s)
    return most_s if most_s < 0.2 else most_s * 0.4


def request_names() -> Iterator[str]:
    """Return names for the requests of this process, each another one."""
    return map(f"{secrets.token_hex(8)}:{{}}".format, count(1))


class LeaseRequests:
    """The requests of one client to the lease script."""

    def __init__(
        self, keys: KeySpace, redis: RedisTier, opener: Opener, exchange: Exchange, withdrawals: Exchange
    ) -> None:
        self._keys = keys
        self._redis = redis
        self._opener = opener
        self._exchange = exchange
        self._withdrawals = withdrawals

    async def ask(self, verb: str, holding: Holding, *, end: float) -> Answer:
        """Run the script until it answers; repeating is safe, for the request's name tells it what was done before.

        An attempt that the end cut off raises what the one before met.
        """
        backoff, repeated = Backoff(0.005, 0.25), False
        exchange = self._withdrawals if verb == "withdraw" else self._exchange
        refused: StateCacheError | None = None
        while True:
            started = boottime()
            try:
                reply = await exchange.send(verb, holding, max(end - monotonic(), 0.001))
            except ResponseError as error:
                refused = refusal(error, self._keys.leases(holding.shard))
                if code_of(error) not in AGAIN or backoff.outlasts(end):
                    raise refused from error
            except RedisUnavailable as error:
                if error.reason in ("pool", *FINAL) or backoff.outlasts(end):
                    if refused is not None and error.reason == "timeout" and monotonic() + LATE_S >= end:
                        raise refused from error
                    raise
                repeated = True
            else:
                verdict, *rest = reply
                if verdict == "FOREIGN":
                    raise found_at(rest[0], rest[1])
                if verdict == "FENCED":
                    await self._opener.open(holding.shard, end=end)
                    continue
                if verdict == "OK" and rest:
                    self._opener.epochs.note(holding.shard, int(rest[0].partition("-")[0]))
                if verdict != "LATE":
                    return Answer(verdict, rest, started, repeated)
                if backoff.outlasts(end):
                    raise RedisUnavailable("late", detail="the server got the request after its time")
            await self._redis.io.sleep(backoff.take())

    async def grant(self, verb: str, holding: Holding, *, end: float) -> Answer | None:
        """Ask for the lock; return None where it was granted, else the answer."""
        while True:
            answer = await self.ask(verb, holding, end=end)
            if not holding.answered(answer.verdict, answer.rest, answer.started, repeated=answer.repeated):
                return answer
            if not holding.lost(boottime()):
                return None
            if monotonic() > end:  # so late an answer is one to ask for again
                reason = "every answer came later than the ttl allows"
                raise LockTimeout(holding.key, seconds=holding.ttl, reason=reason)

    async def withdraw(self, holding: Holding) -> bool:
        """Take back what a request left, or may yet leave: a lease that nobody uses, a place in a queue."""
        with suppress(StateCacheError):
            return (await self.ask("withdraw", holding, end=monotonic() + _UNAWAITED_S)).verdict == "OK"
        return False
