"""Whether this worker's Redis goes on beside the lineage: an old primary whose successor has opened its shards.

Agents that reach it are acknowledged what is never flushed, and all of that is gone once it is made a replica. A worker
that reaches it keeps it in `conflict`, of all shards: those that it holds, those that other workers hold and flush from
the new primary, and when it holds none. It goes on for as long as it reaches that server.

    look    now and then, on the worker's own connection, what meta and row say of some shards; nothing is locked
    keep    where they do not fit, the gates' own rules decide which shards are another branch, and a piece of what
            these hold is kept, more in the next turn; nothing is opened, and nothing is changed on that server
    tell    both servers are named when that begins, and what was kept since is told now and then
    stay    once the worker has left that server for the new primary: on the connection that it had, beside its turns
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

import psycopg

from statecache.core.epoch.gate import Gate
from statecache.errors import ConfigurationError, ForeignData, PostgresUnavailable, RedisUnavailable, Unavailable
from statecache_workers.logs import alarm, crash, say, warn
from statecache_workers.owned_shards import Head

if TYPE_CHECKING:
    from statecache.core.epoch.authority import Vouched
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache.rules.epochs import Refusal
    from statecache.settings import Settings
    from statecache_workers.database import Database
    from statecache_workers.owned_shards import OwnedRow
    from statecache_workers.ownership import Ownership
    from statecache_workers.streams import Streams

PATIENCE = 6
"""For how many times the usual time an old primary that was left may be silent: no other connection leads there."""
SHARDS_PER_LOOK = 256
"""How many shards are looked at together; of more, others the next time."""


class SplitBrain:
    """The watch of one worker over its Redis."""

    def __init__(
        self, settings: Settings, keys: KeySpace, streams: Streams, ownership: Ownership, postgres: PostgresTier, *,
        by: str, vouched: Vouched, monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self.told = ""
        """That it goes on beside the lineage, in words; '' where it does not."""
        self._settings = settings
        self._gate = Gate(settings, keys, by=by, authority="worker", vouched=vouched)
        self._streams = streams
        self._ownership = ownership
        self._postgres = postgres
        self._monotonic = monotonic
        self._next, self._first, self._looked_at = monotonic(), 0, -inf
        self._tells, self._told_of = -inf, 0
        self._soon, self._is_primary = asyncio.Event(), True
        self.kept_at = -inf
        """Up to when all is kept that the server had taken, on the monotonic clock."""

    @property
    def rescued(self) -> int:
        """How many changes it has kept that nobody had kept before."""
        return self._gate.rescued

    async def look(self, link: Link, database: Database) -> bool:
        """Look, where it is time, and keep a piece of what is found; return whether there is more to be kept now."""
        begun = self._monotonic()
        if begun < self._next:
            return False
        self._looked_at = begun
        if not self.told and not await self._is_doubtful(link, database):
            self._next = self._monotonic() + self._settings.lease_s
            return False
        more = await self._keep(link)
        if more is False:
            self.kept_at = begun
        self._next = self._monotonic() + (0.0 if more else self._settings.lease_renew_s)
        return bool(more)

    def kept_upto(self, shard: int) -> int:
        """Return up to which n all is kept that a shard holds beside the lineage; 0 where nothing is known of that."""
        return self._gate.kept_upto(shard) if self.told else 0

    def begin_anew(self) -> None:
        """Look soon, and believe until then that nothing is kept: another connection may lead to another server."""
        self.kept_at, self._next = -inf, self._monotonic()

    def end(self) -> None:
        """Note that the server is no primary any more."""
        if self.told:
            self.told = ""
            say("split_brain_over")

    def look_soon(self, since: float) -> None:
        """End a pause between two looks; on the worker's own connection where none has begun since then."""
        self._soon.set()
        if self._looked_at < since:
            self._next = self._monotonic()

    def stop(self, since: float) -> None:
        """Tell what was kept and not told yet, and that not all is kept, where that is so, for the worker stops."""
        self._tells = -inf
        self._tell_of_kept()
        if self.kept_at < since:
            why = self.told or "it was not reached"
            alarm("not_rescued", detail=f"the worker stops; what an old primary has taken is not all kept: {why}")

    async def stay(self, link: Link) -> None:
        """Keep what the server takes for as long as it is a primary and this connection stands, then close that."""
        why = ""
        try:
            while link.alive and self._is_primary:
                why = await self._stayed(link) or why
        except Exception:  # the turns go on, whatever is wrong there
            crash("not_rescued")
        finally:
            await link.close()
        if self.told and self._is_primary:
            alarm("not_rescued", detail=f"{why}; what that server takes from now on is kept nowhere: {self.told}")
        else:
            self.end()

    async def _stayed(self, link: Link) -> str:
        """Keep a piece, and pause where there is no more; return why that was not possible."""
        why, begun, seconds = "", self._monotonic(), PATIENCE * self._settings.timeout_s
        more: bool | None = None
        try:
            await self._streams.heads(link, (), seconds=seconds)  # which a replica refuses: it has nothing of its own
            more = await self._keep(link, seconds=seconds)
        except (Unavailable, ConfigurationError) as error:
            self._is_primary = not (isinstance(error, RedisUnavailable) and error.reason == "role")
            why = str(error).partition("\n")[0]
            warn("not_rescued", detail=why)
        if more is False:
            self.kept_at = begun
        if not more:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.lease_renew_s):
                    await self._soon.wait()
            self._soon.clear()
        return why

    async def _is_doubtful(self, link: Link, database: Database) -> bool:
        count = self._settings.shards
        shards = range(self._first, min(self._first + SHARDS_PER_LOOK, count))
        self._first = shards.stop % count
        rows = await self._ownership.rows(database, shards)
        heads = await self._streams.heads(link, shards)
        return any(
            isinstance(head, Head) and shard in rows and _does_not_fit(rows[shard], head, heads.server)
            for shard, head in heads.of.items()
        )

    async def _keep(self, link: Link, *, seconds: float | None = None) -> bool | None:
        """Keep a piece, tell of it, and return whether there is more.

        None where Postgres does not let us: the flush of other shards goes on.
        """
        more: bool | None = None
        try:
            beside, more = await self._looked(link, seconds)
        except (PostgresUnavailable, ForeignData, psycopg.Error) as error:
            warn("not_rescued", detail=str(error).partition("\n")[0])
        else:
            before, self.told = self.told, self._gate.told(beside) if beside else ""
            if self.told and not before:
                alarm("split_brain", shards=len(beside), detail=self.told)
            elif before and not self.told:
                say("split_brain_over")
        finally:
            self._tell_of_kept()
        return more

    def _tell_of_kept(self) -> None:
        """Tell what was kept since that was told last, not more often than the worker renews its leases."""
        if self._gate.rescued > self._told_of and self._monotonic() >= self._tells:
            self._tells = self._monotonic() + self._settings.lease_renew_s
            alarm("rescued", changes=self._gate.rescued - self._told_of, detail=self.told)
            self._told_of = self._gate.rescued

    async def _looked(self, link: Link, seconds: float | None) -> tuple[dict[int, Refusal], bool]:
        session = await self._postgres.session()
        try:
            return await self._gate.rescue(link, session.connection, range(self._settings.shards), seconds=seconds)
        finally:
            await session.close()


def _does_not_fit(row: OwnedRow, head: Head, server: str) -> bool:
    """Return whether a data set may be another branch: it names another server than the row, in no later epoch."""
    return head.epoch is not None and head.epoch <= row.epoch and row.replid not in ("", head.replid, server)
