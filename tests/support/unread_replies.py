"""Replies that are left unread on a connection, which must never be taken for those of what is sent next."""

from __future__ import annotations

from typing import Any

from statecache import AsyncStateCache
from statecache.clock import monotonic


async def leave_unread(client: AsyncStateCache, link: Any = None) -> None:
    """Send a commit of the past and leave its reply unread."""
    tier, taken = client._runtime, link or await client._runtime.redis.pool.take(1)
    commit = tier.committer.new(
        [client._view.write_of("runs/first", 3, expected="*")], tier.keys.shard("runs/first"), durability="memory",
        actor="", reason="", end=monotonic() + 1,
    )  # fmt: skip
    await taken.send(tier.committer.attempts.call(taken, commit, 1.0), seconds=1)
    if link is None:
        tier.redis.pool.give(taken)
