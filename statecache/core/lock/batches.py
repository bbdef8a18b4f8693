"""Requests to the lease script in batches: those for claims, as many agents that wait for Postgres go on at the same
moment; and withdrawals, as many that wait for one lock are cancelled at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, ResponseError

from statecache.clock import monotonic
from statecache.core.lock.requests import LeaseScript, attempt_of
from statecache.errors import RedisUnavailable
from statecache.lua import parts_of
from statecache.redis_errors import DEMOTED, code_of

if TYPE_CHECKING:
    from statecache.concurrency import Batcher, Request
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.rules.leases import Holding

_WEIGHT = 1024
"""What a request counts for in a batch, in bytes."""
_GONE = RedisUnavailable("timeout", detail="whoever asked waits no more")


class InBatches:
    """An exchange for all who ask at once."""

    def __init__(self, spelled: LeaseScript, redis: RedisTier, timeout_s: float) -> None:
        self._spelled = spelled
        self._redis = redis
        self._timeout_s = timeout_s
        self._batcher: Batcher[tuple[str, Holding], list[str]] = redis.io.batcher(self._batch)

    async def send(self, verb: str, holding: Holding, seconds: float) -> list[str]:
        """Return the script's answer; raise ResponseError or RedisUnavailable."""
        attempt_s = attempt_of(seconds, self._timeout_s)
        return await self._batcher.ask((verb, holding), weight=_WEIGHT, seconds=attempt_s)

    async def _batch(
        self, requests: Sequence[Request[tuple[str, Holding]]], seconds: float
    ) -> Sequence[list[str] | Exception]:
        """Send the requests that are still waited for in one pipeline, and return an answer for each."""
        end = monotonic() + seconds
        answers: list[list[str] | Exception] = [_GONE] * len(requests)
        link = await self._redis.pool.take(seconds)
        try:
            left = max(end - monotonic(), 0.001)
            asked = [at for at, request in enumerate(requests) if not request.gone]
            calls = [self._spelled.call(*requests[at].question, link, left) for at in asked]
            for at, reply in zip(asked, await self._replies(link, calls, left), strict=True):
                answers[at] = reply if isinstance(reply, Exception) else _texts(reply)
            if any(answer in (["LATE"], ["FENCED", "behind"]) for answer in answers):
                await link.close()  # the next one asks for the server's time anew, and leads to where the address does
        except RedisUnavailable:
            await self._redis.pool.drop_idle()
            raise
        finally:
            self._redis.pool.give(link)
        return answers

    async def _replies(
        self, link: Link, calls: Sequence[tuple[Sequence[str], Sequence[Any]]], seconds: float
    ) -> list[Any]:
        """Run the script for each of the calls, and return the replies; error replies are values."""
        commands = []
        for call in calls:
            commands.append(link.call(self._spelled.script, *call))
            link.knows(self._spelled.script, True)  # it goes with the first of them, which runs before the others
        replies = await link.run(commands, seconds=seconds) if commands else []
        for at, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                try:
                    replies[at] = await link.script(self._spelled.script, *calls[at], seconds=seconds)
                except ResponseError as error:
                    replies[at] = error
            elif isinstance(reply, Exception) and code_of(reply) in DEMOTED:
                await self._redis.leave(link)
        return replies


def _texts(reply: Any) -> list[str]:
    return [part.decode("utf-8", "replace") for part in parts_of(reply)]
