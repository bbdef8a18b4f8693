"""Taking vectors of states that have changed into their indexes, by one worker at a time, beside the flush.

A flush only notes which states have changed: an index of vectors is slow to be added to, and nobody who flushes waits
for it. What was noted is taken in by short transactions on a connection of its own; until then searches look at it
besides. Where Postgres is away, or refuses, it is tried again later. Where it is one index that cannot be added to, as
for a right that lacks or a full disk, what waits for that one waits on, the others go on, and the reason stands beside
the index, and in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from statecache.clock import monotonic as real_monotonic
from statecache.concurrency import TASKS
from statecache.core.postgres.tier import PostgresTier
from statecache.errors import ConfigurationError, PostgresUnavailable
from statecache_workers.database import Call, Database
from statecache_workers.logs import crash, warn
from statecache_workers.postgres_errors import Poison

if TYPE_CHECKING:
    from statecache.keys import KeySpace
    from statecache.settings import Settings

LOOK_S = 15.0
"""How often a worker looks whether there is an index, while there is none."""
TURN_MS = 100
"""For how long one transaction takes vectors in."""
PAUSE_S = 0.25
"""How long it rests when all are taken in."""


class VectorIndexing:
    """The indexing of one worker."""

    def __init__(
        self, settings: Settings, keys: KeySpace, *, by: str, monotonic: Callable[[], float] = real_monotonic
    ) -> None:
        self._settings = settings
        self._postgres = PostgresTier(settings, keys, name=f"statecache vectors {by[-8:]}")
        self._monotonic = monotonic
        self._next_look = monotonic()
        self._task: asyncio.Task[None] | None = None
        self._database: Database | None = None
        self.indexed = 0
        """Of how many states it has looked at the vectors."""

    async def step(self, database: Database) -> None:
        """Look whether there is an index, if it is time, and begin to keep those that there are."""
        if self._monotonic() < self._next_look or (self._task is not None and not self._task.done()):
            return
        self._next_look = self._monotonic() + LOOK_S
        try:
            async with database.transaction() as transaction:
                (((found, _),),) = await transaction.run(Call("vectors_indexed", {}))
        except (PostgresUnavailable, Poison) as error:  # as where the schema is of an earlier release
            warn("vectors_wait", detail=str(error).partition("\n")[0])
            if not database.alive:
                raise
            return
        if found:
            self._task = asyncio.create_task(self._keep(), name="vectors")

    async def _keep(self) -> None:
        """Take vectors in until there is no index any more, or something is in the way."""
        try:
            if self._database is None or not self._database.alive:
                self._database = Database(await self._postgres.session(), self._settings)
            there = True
            while there:
                begun = self._monotonic()
                async with self._database.transaction() as transaction:
                    turn, look = Call("index_vectors", {"ms": TURN_MS}), Call("vectors_indexed", {})
                    ((done,),), ((there, trouble),) = await transaction.run(turn, look)
                    await transaction.commit()
                self.indexed += done
                if trouble and not done:  # nothing is left but what is in trouble
                    warn("vectors_wait", detail=trouble)
                    return
                await TASKS.sleep(self._monotonic() - begun if done else PAUSE_S)
        except (PostgresUnavailable, ConfigurationError, Poison) as error:
            warn("vectors_wait", detail=str(error).partition("\n")[0])
        except Exception:  # the flush goes on, whatever is wrong here
            crash("vectors_wait")

    async def stop(self) -> None:
        """End what is under way and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._database is not None:
            await self._database.close()
