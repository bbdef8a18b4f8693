"""Opening closed gates beside the flush: on connections of its own, so that the other shards go on meanwhile.

A gate that this worker may not open is tried again, ever more slowly; an agent or another worker may open it any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container
from typing import TYPE_CHECKING

import psycopg

from statecache.backoff import pause_s
from statecache.clock import monotonic as real_monotonic
from statecache.core.epoch.gate import Gate, Opened, Vouched
from statecache.core.epoch.newest_epochs import NewestEpochs
from statecache.core.postgres.connection import brief
from statecache.errors import ForeignData, Unavailable
from statecache_workers.logs import alarm, crash, say, warn

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings

PAUSE_S = 0.25
PAUSE_MAX_S = 15.0


class Gatekeeper:
    """The opener of closed gates, all that are asked for at once; `done` is called when something may have changed."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        redis: RedisTier,
        postgres: PostgresTier,
        *,
        by: str,
        done: Callable[[], None],
        monotonic: Callable[[], float] = real_monotonic,
    ) -> None:
        self.vouched = Vouched()
        """The servers in whose place this worker's Redis stands."""
        self._met = NewestEpochs()
        self._gate = Gate(settings, keys, by=by, authority="worker", vouched=self.vouched, met=self._met)
        self._redis = redis
        self._postgres = postgres
        self._done = done
        self._monotonic = monotonic
        self._task: asyncio.Task[None] | None = None
        self.opening: frozenset[int] = frozenset()
        """The shards whose gates are just being opened."""
        self._tries: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self.reason = ""
        """Why the last opening came to an error; '' where it did not."""
        self.failures = 0
        """How often opening came to an error."""

    @property
    def epochs_opened(self) -> int:
        """How many epochs it has opened."""
        return self._gate.epochs_opened

    @property
    def conflicts(self) -> int:
        """How many changes of an old branch it has set aside."""
        return self._gate.conflicts + self._gate.rescued

    def agreed(self, server: str) -> None:
        """Note a server that a row of this Postgres names: what takes its place at this URL may be adopted."""
        self.vouched.note(server)

    def ask(self, shards: Collection[int]) -> None:
        """Start to open those of the shards whose turn it is, unless others are being opened."""
        now = self._monotonic()
        ripe = [shard for shard in shards if self._not_before.get(shard, now) <= now]
        if ripe and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._open(ripe), name="gatekeeper")

    def tried(self, shard: int) -> bool:
        """Return whether the shard was tried and is still closed as far as is known."""
        return self._tries.get(shard, 0) > 0

    def fails_at(self, shards: Container[int]) -> bool:
        """Return whether one of the shards is still closed as far as is known, and was tried more than once."""
        return any(tries > 1 and shard in shards for shard, tries in self._tries.items())

    def opened(self, shard: int, epoch: int) -> None:
        """Note in which epoch the shard was found open, and forget that it gave trouble."""
        self._met.note(shard, epoch)
        self._tries.pop(shard, None)
        self._not_before.pop(shard, None)

    async def _open(self, shards: list[int]) -> None:
        rescued = self._gate.rescued
        self.opening = frozenset(shards)
        try:
            opened = await self._opened(shards)
            if opened:
                say(
                    "epoch_opened",
                    shards=[one.shard for one in opened],
                    epochs=sorted({one.epoch for one in opened}),
                    dropped=sum(one.dropped for one in opened),
                    conflicts=sum(one.conflicts for one in opened),
                )
            for one in opened:
                if one.acknowledged > one.flushed:
                    alarm("postgres_went_back", shard=one.shard, acknowledged=one.acknowledged, flushed=one.flushed)
            self.reason = ""
        except Unavailable as error:
            tell = alarm if error.reason == "epoch" and self.reason != error.detail else warn
            self.reason = error.detail
            self.failures += 1
            tell("gate_closed", reason=error.reason, detail=error.detail, shards=len(shards))
        except (ForeignData, psycopg.Error) as error:
            self.failures += 1
            self.reason = brief(error)
            warn("gate_closed", reason=type(error).__name__, detail=self.reason, shards=len(shards))
        except Exception:  # the flush of other shards goes on, whatever is wrong with these
            self.failures += 1
            crash("gate_closed", shards=len(shards))
        finally:
            if self._gate.rescued > rescued:
                alarm("rescued", changes=self._gate.rescued - rescued, shards=len(shards))
            self.opening = frozenset()
            for shard in shards:
                tries = self._tries[shard] = self._tries.get(shard, 0) + 1
                self._not_before[shard] = self._monotonic() + pause_s(tries, PAUSE_S, PAUSE_MAX_S)
            self._done()

    async def _opened(self, shards: list[int]) -> list[Opened]:
        link = await self._redis.link()
        try:
            session = await self._postgres.session()
            try:
                return await self._gate.open(link, session.connection, shards)
            finally:
                await session.close()
        finally:
            await link.close()

    async def stop(self) -> None:
        """End what is under way; a gate that is half open is somebody else's to open."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
