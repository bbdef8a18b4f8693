"""Where a repeat looks for the change that it repeats, and how the change is brought there."""

from __future__ import annotations

from typing import Any

from statecache import AsyncStateCache
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush

KEY = "runs/42"


class Elsewhere:
    """The places where a repeat looks for a change, first to last; each method brings the change there."""

    def __init__(self, client: AsyncStateCache, worker: Worker, raw: Any, keys: KeySpace) -> None:
        self._client = client
        self._worker = worker
        self._raw = raw
        self._keys = keys

    async def newest(self) -> None:
        """Do nothing: the state holds it."""

    async def remembered(self) -> None:
        """Let the state remember it, and the stream hold it."""
        await self._client.set(KEY, "later")

    async def remembered_and_flushed(self) -> None:
        """Let the state remember it, and Postgres hold it."""
        await self.remembered()
        await self._leave_the_stream()

    async def forgotten(self) -> None:
        """Let only the stream hold it."""
        for number in range(7):
            await self._client.set(KEY, number)

    async def forgotten_and_flushed(self) -> None:
        """Let only Postgres hold it."""
        await self.forgotten()
        await self._leave_the_stream()

    async def _leave_the_stream(self) -> None:
        await flush(self._worker)
        self._raw.xtrim(self._keys.changes(self._keys.shard(KEY)), maxlen=0)


PLACES = ["newest", "remembered", "remembered_and_flushed", "forgotten", "forgotten_and_flushed"]
