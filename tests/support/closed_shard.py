"""A shard whose gate is closed by hand, and what is listed of it."""

from __future__ import annotations

from itertools import count
from typing import Any

import psycopg

from statecache import AsyncStateCache, Settings
from statecache.keys import KeySpace

KEY, GONE, WHOLE = "runs/1", "runs/1/gone", "runs/1/whole"


class Shard:
    """The shard of KEY, to be closed so that no client may open it, and as it was."""

    def __init__(self, settings: Settings, raw: Any, psql: psycopg.Connection[Any]) -> None:
        self._psql, self.raw = psql, raw
        self.keys = KeySpace(settings.prefix, settings.shards)
        self.number = self.keys.shard(KEY)
        self.meta = self.keys.meta(self.number)
        self._replid = raw.hget(self.meta, "replid")

    def close(self) -> None:
        """Give the data set, and the row, to two other servers."""
        self.raw.hset(self.meta, "replid", "a" * 40)
        self._psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", ["b" * 40, self.number])

    def move(self, server: str) -> None:
        """Have the data set, and the row, belong to a server in whose place this one stands."""
        self.raw.hset(self.meta, "replid", server)
        self._psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", [server, self.number])

    def open(self) -> None:
        """Have all as it was."""
        self._psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", [self._replid.decode(), self.number])
        self.raw.hset(self.meta, "replid", self._replid)

    def key_of(self, namespace: str) -> str:
        """Return a key of another namespace on the same shard."""
        return next(key for at in count() if self.keys.shard(key := f"{namespace}/{at}") == self.number)

    @property
    def epoch(self) -> int:
        """The epoch in which it was last open."""
        return int(self.raw.hget(self.meta, "epoch"))


async def in_order(client: AsyncStateCache, prefix: str, order: Any) -> list[tuple[str, Any]]:
    """Return keys and values in the order in which they are listed."""
    return [(state.key, state.value) async for state in client.list(prefix, order=order)]
