"""What is erased in tests: a state with a history, and a group of more keys than one commit deletes."""

from __future__ import annotations

from statecache import AsyncStateCache
from tests.support.remains import SECRET

HEAD = "runs/1"
PAGES = [f"runs/1/page/{number:03}" for number in range(300)]
LONG = [f"step {number} of what {SECRET} said, {number * 7919}" for number in range(60)]


async def told(cache: AsyncStateCache, key: str, secret: str = SECRET) -> None:
    for number in range(3):
        await cache.set(key, [number, secret, *LONG], actor=secret, reason=secret)
