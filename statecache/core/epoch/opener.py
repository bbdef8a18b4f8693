"""How a client gets a closed shard opened: by itself where the data set continues the row, else on others' word.

Of a client's tasks one opens a shard and the others wait for it. While it waits for somebody else it holds no
connection: others go on. After a second it says in the log what it waits for, for nobody may be there who
could do it: a worker that starts in a moment, and a `statecache migrate` that was forgotten, look the same. Writes that
find the gate closed while Postgres is down raise `Unavailable(reason="epoch")` when their time is up: better no write
than one that may have to be taken back.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING, Any

import psycopg

from statecache._process import begins_anew_after_fork, mutex
from statecache.backoff import LATE_S, Backoff
from statecache.clock import monotonic
from statecache.core.epoch.gate import AttemptResult, Gate
from statecache.core.epoch.newest_epochs import NewestEpochs
from statecache.core.postgres.connection import brief
from statecache.errors import PostgresUnavailable, RedisUnavailable, Unavailable
from statecache.redis_errors import FINAL
from statecache.settings import Settings, writer_of

if TYPE_CHECKING:
    from statecache.concurrency import Slots
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.rules.epochs import Refusal

SILENT_S = 1.0
"""How long an opening waits for others without a word."""
PAUSE_S_MAX = 0.25
"""The longest pause between two attempts, in seconds."""
RENEWED_EVERY_S = 1.0
"""How often the connections are left, at most, while others are waited for on a server that is none of the lineage."""
TOLD_EVERY_S = 10.0
"""How often a client says it at most, however many shards wait."""
_logger = logging.getLogger("statecache")


class Opener:
    """The opening of shards on a client's authority."""

    def __init__(self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier) -> None:
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self.epochs = NewestEpochs()
        self._told_at = self._renewed_at = -inf
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, _: AbstractContextManager[Any]) -> None:
        """Forget what a parent's tasks or threads are opening."""
        self._gate = Gate(self._settings, self._keys, by=writer_of(self._settings), authority="client", met=self.epochs)
        self._turns: dict[int, Slots] = {}
        self._times: dict[int, int] = {}

    async def open(self, shard: int, *, end: float) -> None:
        """Return when the shard is open; try until `end`, then raise Unavailable(reason="epoch").

        Raised more than a pause (`PAUSE_S_MAX`) before `end`, that says that waiting does not help.
        """
        turns, times = self._turns.setdefault(shard, self._redis.io.slots(1)), self._times.get(shard, 0)
        turn = await turns.acquire(max(end - monotonic(), 0.001))
        if turn is None:
            raise Unavailable("epoch", detail=f"shard {shard} is still being opened")
        try:
            if self._times.get(shard, 0) == times:
                await self._open(shard, end)
                self._times[shard] = times + 1
        finally:
            turn.release()

    async def _open(self, shard: int, end: float) -> None:
        """Try until it is open; an attempt for which too little time was left raises what the one before met.

        Where the server that was asked is none of the lineage, a new connection is asked once more: the old one may
        lead to an old primary, though the address does not any more. Where it waits for others, that is done again now
        and then.
        """
        renewed = False
        token, backoff = self._gate.new_token(), Backoff(0.01, PAUSE_S_MAX)
        refused: dict[int, Refusal] = {}
        last_error: Exception | None = None
        begun = monotonic()
        while True:
            seconds = max(min(end - monotonic(), self._settings.timeout_s), 0.001)
            try:
                outcome = await self._attempt(shard, token, seconds)
                refused = outcome.refused
            except (PostgresUnavailable, psycopg.Error) as error:
                await self._postgres.pool.drop_idle()
                if last_error is None or monotonic() + LATE_S < end:  # one that the end cut off says nothing
                    last_error = error
                if backoff.outlasts(end):
                    if refused:
                        self._gate.refuse(refused)
                    if isinstance(last_error, RedisUnavailable):
                        raise last_error from error
                    detail = f"shard {shard} waits for its epoch: {brief(last_error)}"
                    raise Unavailable("epoch", detail=detail) from last_error
                refused = {}
            except RedisUnavailable as error:
                await self._redis.pool.drop_idle()
                if error.reason in FINAL or backoff.outlasts(end):
                    if refused:
                        self._gate.refuse(refused)
                    raise
                last_error = error
            else:
                if not refused:
                    self.epochs.prove(shard, outcome.epochs[shard])
                    return
                once_more = refused[shard].branch and not renewed
                if once_more or (refused[shard].branch and monotonic() - self._renewed_at >= RENEWED_EVERY_S):
                    renewed, self._renewed_at = True, monotonic()
                    await self._redis.pool.drop_idle(all_of_them=True)
                if not once_more and (not refused[shard].wait or backoff.outlasts(end)):
                    self._gate.refuse(refused)
                self._tell(refused, begun=begun, end=end)
            await self._redis.io.sleep(backoff.take())

    def _tell(self, refused: dict[int, Refusal], *, begun: float, end: float) -> None:
        now = monotonic()
        if now - begun >= SILENT_S and now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            _logger.warning("waiting, for at most %.0f s more: %s", end - now, self._gate.told(refused))

    async def _attempt(self, shard: int, token: str, seconds: float) -> AttemptResult:
        session = await self._postgres.pool.take(seconds)
        whole = False
        try:
            link = await self._redis.pool.take(seconds)
            try:
                outcome = await self._gate.attempt(link, session.connection, [shard], token=token, seconds=seconds)
                if any(one.branch and not one.wait for one in outcome.refused.values()):
                    await link.close()
            finally:
                self._redis.pool.give(link)
            whole = True
        except psycopg.ProgrammingError as error:
            hint = "Run `statecache migrate`; grant agents SELECT on the tables and EXECUTE on begin_epoch."
            raise self._postgres.misfit(error, hint, worked=bool(self._times)) from error
        finally:
            if not whole:
                await session.close()
            self._postgres.pool.give(session)
        return outcome
