"""Whether Redis has room left, or can make some: only states that Postgres holds may be evicted.

A Redis that is full of what may not leave refuses commits until somebody gives it memory. That is safe, and agents are
told so; but nobody finds out in time unless somebody looks, so every worker does, now and then.
"""

from __future__ import annotations

import re

NEARLY_FULL = 0.9
ROOM_S = 10.0
ASK = ("INFO", "memory", "keyspace")


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
