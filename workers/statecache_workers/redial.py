"""Dialling the address of Redis again: whether it leads to another server than an open connection does.

It may err for a while, and lead to a server that is empty, or to another deployment's: whether that other one is the
primary is for the rows in Postgres to say. Until they do, the worker's connections and what it knows stay as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from statecache.backoff import pause_s
from statecache.core.redis.tier import RedisTier
from statecache.errors import ConfigurationError, Unavailable
from statecache_workers.logs import crash, whisper
from statecache_workers.redis_rights import worker_link

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache.settings import Settings
    from statecache_workers.streams import Streams

PAUSE_S = 2.0
"""The upper end of the first pause, in seconds; no pause is shorter than half of it."""
PAUSE_S_MAX = 5.0


class Moved(NamedTuple):
    """A connection, the replid of its server, and another one to the server to which the address leads now."""

    old: Link
    left: str
    link: Link
    server: str


class Redial:
    """The dialler of one worker.

    `is_primary` says of a replid whether the lineage goes on there; `done` is called when there is something to take.
    """

    def __init__(
        self, settings: Settings, keys: KeySpace, streams: Streams, *,
        is_primary: Callable[[str], Awaitable[bool]], done: Callable[[], None], monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._keys = keys
        self._streams = streams
        self._is_primary = is_primary
        self._done = done
        self._monotonic = monotonic
        self._task: asyncio.Task[None] | None = None
        self._found: Moved | None = None
        self._dials, self._not_before = 0, monotonic()

    async def dial(self) -> Link:
        """Open a connection to where the address leads now."""
        return await worker_link(RedisTier(self._settings, self._keys), self._keys, self._settings)

    async def ask(self, link: Link) -> None:
        """Start to look whether the address leads elsewhere than this connection, at most about once a second."""
        busy = self._task is not None and not self._task.done()
        if busy or self._found is not None or self._monotonic() < self._not_before:
            return
        self._dials += 1
        self._not_before = self._monotonic() + pause_s(self._dials, PAUSE_S, PAUSE_S_MAX)
        here = await self._server(link)
        self._task = asyncio.create_task(self._look(link, here), name="redial")

    def take(self) -> Moved | None:
        """Return a connection to another server, for the caller to keep; None where none was found."""
        found, self._found = self._found, None
        return found

    async def _look(self, old: Link, here: str) -> None:
        try:
            link = await self.dial()
            try:
                there = await self._server(link)
                if there != here and await self._is_primary(there):
                    self._dials, self._found = 0, Moved(old, here, link, there)
                    self._done()
            finally:
                if self._found is None:
                    await link.close()
        except (Unavailable, ConfigurationError, psycopg.Error) as error:
            whisper("not_redialled", detail=str(error))
        except Exception:  # the turns go on, whatever is wrong here
            crash("not_redialled")

    async def _server(self, link: Link) -> str:
        return (await self._streams.heads(link, ())).server

    async def stop(self) -> None:
        """End what is under way, and close what nobody has taken."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if (found := self.take()) is not None:
            await found.link.close()
