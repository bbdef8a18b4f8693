"""A server that cannot be reached: both clients tell the system's reason."""

from __future__ import annotations

import pytest

from statecache import AsyncStateCache, StateCache, Unavailable

NOBODY = "postgresql://x@127.0.0.1:1/x"


def test_a_refused_connect_is_told_as_such_to_threads() -> None:
    with (
        pytest.raises(Unavailable, match="Connection refused"),
        StateCache(redis_url="redis://127.0.0.1:1/0", postgres_url=NOBODY) as cache,
    ):
        cache.get("runs/42")


async def test_a_refused_connect_is_told_as_such_to_tasks() -> None:
    with pytest.raises(Unavailable, match="Connection refused"):
        async with AsyncStateCache(redis_url="redis://127.0.0.1:1/0", postgres_url=NOBODY) as cache:
            await cache.get("runs/42")
