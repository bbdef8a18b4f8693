"""Passes through namespaces whose policy lets values of changes go, by one worker at a time, beside the flush.

Postgres has a row for each such namespace: who is at it, until when, and how far. A worker that finds one due takes it,
goes through it page by page, and renews its lease with each; one that dies leaves it to another, which goes on there.
Where a server is away, or a lock is not to be had, it waits and tries again. It works for a part of the time only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from statecache.clock import monotonic as real_monotonic
from statecache.concurrency import TASKS
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.errors import ConfigurationError, PostgresUnavailable, Unavailable
from statecache.rules.retention import retention_of
from statecache_workers.database import Call, Database
from statecache_workers.logs import crash, say, warn
from statecache_workers.postgres_errors import Poison
from statecache_workers.pruning import Lot, Lots, Place, Pruned, Pruner
from statecache_workers.redis_time import RedisTime

if TYPE_CHECKING:
    from statecache.keys import KeySpace
    from statecache.retention import Retention
    from statecache.settings import Settings

LOOK_S = 30.0
"""How often a worker looks whether a namespace is due."""
LEASE = timedelta(seconds=60)
REST = 3.0
"""How many times as long as it worked it rests, so that the flush has the servers for itself meanwhile."""
REST_MAX_S = 2.0
LOCKED = ("55P03", "40P01")
"""Why a lock was not to be had: somebody held it for too long, or waited for us."""
LOCKED_TIMES = 5


class PrunePasses:
    """The passes of one worker."""

    def __init__(
        self, settings: Settings, keys: KeySpace, *, by: str, monotonic: Callable[[], float] = real_monotonic
    ) -> None:
        self._settings = settings
        redis = RedisTier(settings, keys)
        self._postgres = PostgresTier(
            settings, keys, name=f"statecache prune {by[-8:]}", cluster=lambda: redis.cluster,
            ask_redis=redis.look_again)  # fmt: skip
        self._redis_time = RedisTime(settings, redis, self._postgres)
        self._by = by
        self._every = timedelta(seconds=settings.prune_interval_s)
        self._monotonic = monotonic
        self._next = monotonic()
        self._task: asyncio.Task[None] | None = None
        self._database: Database | None = None
        self.pruned = Pruned()
        """What it has let go."""

    def ask(self) -> None:
        """Begin to look for a namespace that is due, if it is time and nothing is under way."""
        if self._monotonic() >= self._next and (self._task is None or self._task.done()):
            self._next = self._monotonic() + LOOK_S
            self._task = asyncio.create_task(self._look(), name="prune")

    async def _look(self) -> None:
        try:
            if self._database is None or not self._database.alive:
                self._database = Database(await self._postgres.session(), self._settings)
            while await self._pass(self._database):
                pass
        except (Unavailable, ConfigurationError, Poison) as error:
            warn("prune_waits", detail=str(error).partition("\n")[0])
        except Exception:  # the flush goes on, whatever is wrong here
            crash("prune_waits")

    async def _pass(self, database: Database) -> bool:
        """Go through a namespace that is due, and return whether there was one."""
        async with database.transaction() as transaction:
            asked = {"holder": self._by, "lease": LEASE, "every": self._every}
            (rows,) = await transaction.run(Call("prune_take", asked))
            await transaction.commit()
        if not rows:
            return False
        name, key, version, *policy = rows[0]
        pruner = Pruner(database, self._redis_time, seconds=self._settings.timeout_s)
        place = Place(key, version) if key else None
        retention: Retention | None = retention_of(*policy)
        done, lots = Pruned(), Lots()
        while retention is not None:
            begun = self._monotonic()
            place = await pruner.page(name, retention, place, lots)
            await self._rest(begun)
            some = Pruned()
            for lot in lots.take(every=place is None):
                begun = self._monotonic()
                some.add(await patiently(pruner, lot))
                await self._rest(begun)
            kept = await self._keep(database, name, place, some)
            if kept != retention:
                retention, lots = kept, Lots()
            self.pruned.add(some)
            done.add(some)
            if place is None:
                break
        if done.values or done.damaged:
            say("pruned", namespace=name, values=done.values, bytes=done.bytes, pinned=done.pinned,
                damaged=len(done.damaged))  # fmt: skip
        return True

    async def _keep(self, database: Database, name: str, place: Place | None, done: Pruned) -> Retention | None:
        """Keep how far the pass has come, and return the policy as it is by now; None where it is not ours any more."""
        asked = {
            "name": name, "holder": self._by, "lease": LEASE, "ended": place is None,
            "key": "" if place is None else place.key, "version": 0 if place is None else place.version,
            "values": done.values, "bytes": done.bytes,
        }  # fmt: skip
        async with database.transaction() as transaction:
            (rows,) = await transaction.run(Call("prune_keep", asked))
            await transaction.commit()
        return retention_of(*rows[0]) if rows else None

    async def _rest(self, begun: float) -> None:
        await TASKS.sleep(min((self._monotonic() - begun) * REST, REST_MAX_S))

    async def stop(self) -> None:
        """End what is under way and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._database is not None:
            await self._database.close()


async def patiently(pruner: Pruner, lot: Lot) -> Pruned:
    """Let values go; where a lock is not to be had, try again, and after some times leave it to the next pass."""
    for _ in range(LOCKED_TIMES):
        try:
            return await pruner.prune(lot)
        except PostgresUnavailable as error:
            if error.reason not in LOCKED:
                raise
        await TASKS.sleep(REST_MAX_S / LOCKED_TIMES)
    return Pruned()
