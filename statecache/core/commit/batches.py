"""Commits of many callers in one exchange: the script once for each of them, in one pipeline on one connection.

Whoever waits until Postgres holds a commit has the time to travel with others, and there are many of them at once: a
flush acknowledges the commits of many callers, who go on in the same moment. A commit that is not waited for goes
alone, as quickly as it can. Each commit keeps its identity, its nonce and its times; what one of them comes to is
nothing to the others, but for the connection: where that breaks, every outcome of the exchange is in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statecache.clock import monotonic
from statecache.concurrency import SILENCE_S
from statecache.core.commit.attempts import Attempts
from statecache.errors import RedisUnavailable

if TYPE_CHECKING:
    from statecache.commit_protocol.commit import Commit
    from statecache.concurrency import Batcher, Request
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier

Replies = list[Any]
_GONE = RedisUnavailable("timeout", detail="whoever asked waits no more")


def attempt_s(seconds: float) -> float:
    """Return how much of the time that is left an attempt may take, so that another one can follow it."""
    return seconds if seconds < SILENCE_S else seconds * 0.4


class BatchedAttempts:
    """The sending of the commit script for several commits at once."""

    def __init__(self, redis: RedisTier, attempts: Attempts) -> None:
        self._redis = redis
        self._attempts = attempts
        self._batcher: Batcher[Commit, Replies] = redis.io.batcher(self._carry)

    async def send(self, commit: Commit, seconds: float) -> Replies:
        """Return the replies that decide about the commit, which is in doubt where it was sent and none came."""
        weight = sum(write.weight for write in commit.writes)
        return await self._batcher.ask(commit, weight=weight, seconds=attempt_s(seconds))

    async def _carry(self, requests: Sequence[Request[Commit]], seconds: float) -> Sequence[Replies | Exception]:
        """Make one exchange for those commits whose callers still wait, and return the replies of each."""
        end = monotonic() + seconds
        sent: dict[int, Commit] = {}
        link = await self._redis.pool.take(seconds)
        try:
            replies = await self._replies(link, requests, sent, max(end - monotonic(), 0.001))
        except RedisUnavailable as error:
            for commit in sent.values():
                commit.unanswered(error)
            await self._redis.pool.drop_idle()
            raise
        finally:
            self._redis.pool.give(link)
        return [replies.get(at, _GONE) for at in range(len(requests))]

    async def _replies(
        self,
        link: Link,
        requests: Sequence[Request[Commit]],
        sent: dict[int, Commit],
        seconds: float,
    ) -> dict[int, Replies]:
        """Return the replies by request; `sent` collects the commits of the exchange, whatever becomes of it."""
        commands = []
        for at, request in enumerate(requests):
            if not request.gone:
                sent[at] = request.question
                commands.append(self._attempts.call(link, request.question, seconds))
                link.knows(self._attempts.script, True)  # it goes with the first of them, which runs before the others
        replies = await link.run(commands, seconds=seconds) if commands else []
        answers: dict[int, Replies] = {}
        for (at, commit), reply in zip(sent.items(), replies, strict=True):
            answer = await self._attempts.answered(link, commit, reply)
            await self._attempts.noted(link, answer)
            answers[at] = [answer]
        return answers
