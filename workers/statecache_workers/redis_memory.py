"""Whether Redis has room left, or can make some: only states that Postgres holds may be evicted.

A Redis that is full of what may not leave refuses commits until somebody gives it memory. That is safe, and agents are
told so; but nobody finds out in time unless somebody looks, so every worker does, now and then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from statecache_workers.logs import alarm

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.settings import Settings

NEARLY_FULL = 0.9
ROOM_S = 10.0
ASK = ("INFO", "memory", "keyspace")


class Room:
    """What a worker knows of the room in Redis: `full` while it is nearly full of what may not leave it."""

    def __init__(self, settings: Settings, *, monotonic: Callable[[], float]) -> None:
        self.full = False
        self._settings = settings
        self._monotonic = monotonic
        self._next = monotonic()

    async def look(self, link: Link) -> None:
        """Look where it is time, and raise an alarm where Redis is full."""
        if self._monotonic() < self._next:
            return
        (info,) = await link.run([ASK], seconds=self._settings.timeout_s)
        short = shortage(info.decode()) if isinstance(info, bytes) else None
        self.full = short is not None
        if short is not None:
            alarm("redis_is_full", **short)
        self._next = self._monotonic() + ROOM_S


def shortage(info: str) -> dict[str, str | int] | None:
    """Return, from the answer to `ASK`, the facts of an alarm: Redis is nearly full and can evict nothing; else None.

    A state that may be evicted has a time to live, and nothing else has one.
    """
    limit, used = _number(info, "maxmemory"), _number(info, "used_memory")
    evictable = sum(int(count) for count in re.findall(r"^db\d+:.*?expires=(\d+)", info, re.MULTILINE))
    found = re.search(r"^maxmemory_policy:(\S+)", info, re.MULTILINE)
    policy = found[1] if found else ""
    if not limit or used < NEARLY_FULL * limit or (evictable and policy.startswith("volatile-")):
        return None
    return {"used_bytes": used, "maxmemory_bytes": limit, "evictable_states": evictable, "policy": policy}


def _number(info: str, name: str) -> int:
    found = re.search(rf"^{name}:(\d+)", info, re.MULTILINE)
    return int(found[1]) if found else 0
