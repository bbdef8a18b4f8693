"""What is left of a story when everything is flushed: nothing dirty, and nothing that may never be evicted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import psycopg

from statecache.keys import KeySpace
from tests.support.dirtiness import dirty_keys

TIDY_ROUNDS = 50


def nothing_is_dirty(raw: Any, psql: psycopg.Connection[Any], keys: KeySpace) -> None:
    """Assert that both servers say that every shard is flushed to its end."""
    rows: dict[int, int] = dict(psql.execute("SELECT shard, flushed FROM shard").fetchall())
    for shard, flushed in rows.items():
        meta = raw.hmget(keys.meta(shard), "n", "flushed")
        assert [int(part) for part in meta] == [flushed, flushed]
        assert not dirty_keys(raw, keys, shard)


def listed_as_written(raw: Any, keys: KeySpace) -> list[str]:
    """Return the keys whose states the worker has still to make evictable."""
    names = [name.decode() for shard in range(keys.shards) for name in raw.zrange(keys.unflushed(shard), 0, -1)]
    return [name for name in names if name != "_"]


async def tidied(raw: Any, keys: KeySpace, written: Iterable[str], tidy: Callable[[], Awaitable[None]]) -> None:
    """Let the worker tidy until it has nothing left, and assert that every state that was written may be evicted."""
    for _ in range(TIDY_ROUNDS):
        if not listed_as_written(raw, keys):
            break
        await tidy()
    assert not listed_as_written(raw, keys)
    for name in map(keys.state, written):
        assert raw.pttl(name) != -1, f"{name} may never be evicted"
