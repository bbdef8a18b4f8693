"""A worker's connections to the primary, and how it leaves an old one that goes on.

A proxy, a virtual address or a service may lead to the new primary, and leave connections that are open where they are:
at an old primary that goes on. Nobody but the worker itself can leave it then.

    ask      the server goes on beside the lineage, or a gate that was tried more than once is still closed there
    dial     beside the turns, another connection (`redial`)
    same     it leads to the same server, or to one that no row in Postgres names as the primary, or cannot be opened:
             everything stays as it is
    another  the next turn works on it. One connection to the old primary stays open, and what that takes is kept beside
             the turns (`split_brain`), for connections of agents may have stayed there too

A worker that is told to stop keeps first what old primaries have taken until then, the one that it works on too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from statecache.errors import RedisUnavailable
from statecache_workers.database import Database
from statecache_workers.logs import say, whisper
from statecache_workers.redial import Redial
from statecache_workers.redis_rights import worker_link
from statecache_workers.split_brain import SplitBrain
from statecache_workers.streams import Woken

if TYPE_CHECKING:
    from statecache.core.epoch.authority import Vouched
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings
    from statecache_workers.owned_shards import Holding
    from statecache_workers.ownership import Ownership
    from statecache_workers.redial import Moved
    from statecache_workers.streams import Streams


class Primary:
    """The connections of one worker.

    `soon` is called when the next turn should come soon, and `changed` when the connection is another one than before.
    """

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier, *, streams: Streams,
        ownership: Ownership, by: str, vouched: Vouched, soon: Callable[[], None], changed: Callable[[], None],
        monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._ownership = ownership
        self._streams = streams
        self._changed = changed
        self.link: Link | None = None
        self._waker: Link | None = None
        self.redial = Redial(settings, keys, streams, is_primary=self._is_primary, done=soon, monotonic=monotonic)
        self._watch = partial(
            SplitBrain, settings, keys, streams, ownership, postgres, by=by, vouched=vouched, monotonic=monotonic
        )
        self._split_brain = self._watch()
        self._left: dict[str, tuple[asyncio.Task[None], SplitBrain]] = {}
        self._rescued = 0

    @property
    def told(self) -> str:
        """That the server goes on beside the lineage, in words; '' where it does not."""
        return self._split_brain.told

    @property
    def rescued(self) -> int:
        """How many changes were kept of old primaries that nobody had kept before."""
        watches = [watch for _, watch in [*self._left.values()]]
        return self._rescued + sum(one.rescued for one in (self._split_brain, *watches))

    @property
    def left(self) -> list[str]:
        """The replids of the old primaries that were left and are still reached."""
        return [server for server, (task, _) in self._left.items() if not task.done()]

    def kept_upto(self, shard: int) -> int:
        """Return up to which n all is kept of what a shard of the worker's own server holds beside the lineage."""
        return self._split_brain.kept_upto(shard)

    def look_soon(self, since: float) -> None:
        """Look once more, where none has begun since then, whether a server goes on beside the lineage."""
        for watch in [self._split_brain, *(watch for _, watch in self._left.values())]:
            watch.look_soon(since)

    def has_kept(self, since: float) -> bool:
        """Return whether all is kept that old primaries had taken by then, as far as they are still reached."""
        self.look_soon(since)
        return all(watch.kept_at >= since for watch in self._reached())

    def stop(self, since: float) -> None:
        """Tell of what old primaries had taken by then that is not kept, as far as they are still reached."""
        for watch in self._reached():
            watch.stop(since)

    def _reached(self) -> list[SplitBrain]:
        """Return the watches of servers that go on beside the lineage, those that were left and the worker's own."""
        left = [watch for task, watch in self._left.values() if not task.done()]
        return [*left, self._split_brain] if self.told else left

    async def connect(self) -> Link:
        """Return the connection to work on, another one where the old one broke, or the address has moved."""
        moved = self.redial.take()
        if moved is not None and moved.old is self.link and moved.old.alive:
            await self._move(moved)
        elif moved is not None:
            await moved.link.close()
        if self.link is None or not self.link.alive:
            await self._leave_waker()
            self.link = await worker_link(self._redis, self._keys, self._settings)
            self._split_brain.begin_anew()
            self._changed()
        return self.link

    async def _is_primary(self, server: str) -> bool:
        """Return whether rows in Postgres name a server as the primary of their shards."""
        database = Database(await self._postgres.session(), self._settings)
        try:
            rows = await self._ownership.rows(database, range(self._settings.shards))
        finally:
            await database.close()
        return any(row.replid == server for row in rows.values())

    async def _leave_waker(self) -> None:
        """Close the other connection: the server behind it may be another one than that which answers now."""
        if self._waker is not None:
            await self._waker.close()

    async def _move(self, moved: Moved) -> None:
        """Work on the new connection, and have what the old primary takes kept on the old one.

        All of that is done before anything is awaited: whoever is cancelled meanwhile leaves no connection behind.
        """
        say("address_moved", left=moved.left, server=moved.server)
        watch, self._split_brain, self.link = self._split_brain, self._watch(), moved.link
        over = [self._left.pop(server) for server in (moved.left, moved.server) if server in self._left]
        over += [self._left.pop(server) for server, (task, _) in [*self._left.items()] if task.done()]
        self._left[moved.left] = asyncio.create_task(watch.stay(moved.old), name="old primary"), watch
        self._rescued += sum(one.rescued for _, one in over)
        self._changed()
        await self._leave_waker()
        await _ended([task for task, _ in over])

    async def look_beside(self, database: Database, *, hindered: bool) -> bool:
        """Keep a piece of what an old primary takes, and dial again where the server is one, or where hindered.

        Returns whether there is more to be kept now.
        """
        assert self.link is not None
        more = await self._split_brain.look(self.link, database)
        if self.told or hindered:
            try:
                await self.redial.ask(self.link)
            except RedisUnavailable as error:
                if error.reason == "role":
                    self._split_brain.end()  # it has been made a replica
                raise
        return more

    async def wait(self, watched: Sequence[Holding], *, seconds: float) -> Woken:
        """Wait for shards that have something to read, and return them; a connection that falls silent is given up."""
        if self._waker is None or not self._waker.alive:
            self._waker = await self._redis.link()
        try:
            return await self._streams.wait(self._waker, watched, seconds=seconds)
        except RedisUnavailable as error:
            if error.reason != "timeout":
                raise
            whisper("not_woken", detail=str(error))
            return Woken([], False)

    async def close(self) -> None:
        """Close every connection."""
        await self.redial.stop()
        await _ended([task for task, _ in self._left.values()])
        for link in (self.link, self._waker):
            if link is not None:
                with contextlib.suppress(OSError):
                    await link.close()


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
