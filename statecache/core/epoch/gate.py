"""Opening shards' gates: who asks, how long it is tried, and what is said when it may not be.

An attempt (`attempt`) opens what may be opened now. What others are just opening, or hold, is tried again; what this
authority may not open is refused with the reason, and the other shards are open all the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from redis.exceptions import ResponseError

from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.core.epoch.attempt import Attempt
from statecache.core.epoch.authority import Candidate, Vouched
from statecache.core.epoch.newest_epochs import NewestEpochs
from statecache.core.epoch.stages import AttemptResult, Opened
from statecache.errors import ForeignData, Unavailable
from statecache.redis_errors import refusal
from statecache.rules.epochs import Authority, Refusal
from statecache.settings import masked

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache.settings import Settings


class Gate:
    """The opening of shards on the authority of a client, a worker, or an operator.

    `vouched` says in whose place this Redis stands (see `rules.epochs`), `met` which epochs are known to have been.

    It counts the epochs that it opened and the changes that it set aside.
    """

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        *,
        by: str,
        authority: Authority,
        vouched: Vouched | None = None,
        met: NewestEpochs | None = None,
        new_token: Callable[[], str] = lambda: secrets.token_hex(12),
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.new_token = new_token
        self.epochs_opened = self.conflicts = 0
        self._candidate = Candidate(
            settings, keys, by=by, authority=authority, vouched=vouched or Vouched(), met=met or NewestEpochs()
        )

    @property
    def rescued(self) -> int:
        """How many changes it kept of old primaries that go on by themselves."""
        return self._candidate.diverged_primary.changes

    def kept_upto(self, shard: int) -> int:
        """Return up to which n all is kept of a shard of an old primary; 0 where it was not gone through."""
        return self._candidate.diverged_primary.kept_upto(shard)

    async def open(self, link: Link, connection: psycopg.AsyncConnection[Any], shards: Sequence[int]) -> list[Opened]:
        """Open those of the shards whose gate is closed, and return what was opened; open ones are left alone.

        Raises Unavailable(reason="epoch") where one of them may not be opened by this authority, or not in time, and
        ForeignData where one of its keys is another program's; the others are opened all the same.
        """
        token, end = self.new_token(), monotonic() + 3 * self.settings.reservation_s
        backoff = Backoff(0.01, 0.25)
        opened: list[Opened] = []
        final: dict[int, Refusal] = {}
        waiting: Sequence[int] = sorted(set(shards))
        while waiting:
            outcome = await self.attempt(link, connection, waiting, token=token, seconds=self.settings.timeout_s)
            opened += outcome.opened
            self.epochs_opened += len(outcome.opened)
            self.conflicts += sum(one.conflicts for one in outcome.opened)
            final |= {shard: reason for shard, reason in outcome.refused.items() if not reason.wait}
            waiting = sorted(outcome.refused.keys() - final.keys())
            if waiting and monotonic() > end:
                self.refuse(final or outcome.refused)
            if waiting and not outcome.opened:
                await link.io.sleep(backoff.take())
        if final:
            self.refuse(final)
        return opened

    async def attempt(
        self,
        link: Link,
        connection: psycopg.AsyncConnection[Any],
        shards: Sequence[int],
        *,
        token: str,
        seconds: float,
    ) -> AttemptResult:
        """Try once, with exchanges of at most that many seconds; an earlier attempt's token keeps its reservations.

        Error replies of Redis are translated, Postgres' errors are psycopg's.
        """
        try:
            return await Attempt(self._candidate, link, connection, token=token, seconds=seconds).run(shards)
        except ResponseError as error:
            raise refusal(error, self.keys.meta(min(shards))) from error

    async def rescue(
        self, link: Link, connection: psycopg.AsyncConnection[Any], shards: Sequence[int], *,
        seconds: float | None = None,
    ) -> tuple[dict[int, Refusal], bool]:  # fmt: skip
        """Keep a piece of what this server takes beside the lineage, whoever owns those shards; open nothing.

        Returns the shards in which it is another branch, with the refusals that say so, and whether there is more.
        Error replies of Redis are translated, Postgres' errors are psycopg's.
        """
        attempt = Attempt(self._candidate, link, connection, token="", seconds=seconds or self.settings.timeout_s)
        try:
            return await attempt.rescue(shards)
        except ResponseError as error:
            raise refusal(error, self.keys.meta(min(shards))) from error

    def refuse(self, refused: dict[int, Refusal]) -> None:
        """Raise the error that says why shards could not be opened."""
        reason = refused[min(refused)]
        if reason.redis_key:
            raise ForeignData(reason.redis_key, reason=reason.why)
        raise Unavailable("epoch", detail=self.told(refused))

    def told(self, refused: dict[int, Refusal]) -> str:
        """Return which shards could not be opened, where, and why the first of them."""
        shard, reason = min(refused.items())
        which = f"shard {shard} is" if len(refused) == 1 else f"{len(refused)} shards are, {shard} first,"
        where = f"{masked(self.settings.redis_url)} and {masked(self.settings.postgres_url)}"
        return f"{which} closed, at {where}: {reason.why}"


__all__ = ["Gate", "Opened", "AttemptResult", "Vouched"]
