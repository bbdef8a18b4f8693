"""Which states of a deployment are dirty: those written at an n above their shard's watermark, as Redis knows it."""

from __future__ import annotations

from typing import Any

from redis.exceptions import OutOfMemoryError

from statecache.keys import KeySpace

IS_DIRTY = """
local function is_dirty(meta, written, key)
  local n = redis.call('ZSCORE', written, key)
  return n and tonumber(n) > tonumber(redis.call('HGET', meta, 'flushed') or '-1')
end
"""
"""Lua for scripts that look in one moment."""

EVICT = f"""{IS_DIRTY}
if is_dirty(KEYS[1], KEYS[2], ARGV[1]) then return 0 end
return redis.call('UNLINK', KEYS[3])
"""
"""Does what Redis does for room, to a state that is clean."""


def dirty_keys(raw: Any, keys: KeySpace, shard: int) -> dict[str, int]:
    """Return the dirty keys of a shard, each with the n of its newest change."""
    flushed = int(raw.hget(keys.meta(shard), "flushed") or -1)
    found = raw.zrangebyscore(keys.unflushed(shard), f"({flushed}", "+inf", withscores=True)
    return {key.decode() if isinstance(key, bytes) else key: int(n) for key, n in found}


def is_dirty(raw: Any, keys: KeySpace, key: str) -> bool:
    """Tell whether a key holds a change that is not flushed."""
    return key in dirty_keys(raw, keys, keys.shard(key))


def evict(raw: Any, keys: KeySpace, key: str) -> bool:
    """Take a state away if it is clean, and tell whether it was."""
    shard = keys.shard(key)
    return bool(raw.eval(EVICT, 3, keys.meta(shard), keys.unflushed(shard), keys.state(key), key))


def evict_all(redis_raw: Any) -> None:
    """Wait until a server without memory has evicted what it may: so long it takes writes, however little it has."""
    for _ in range(100_000):
        try:
            redis_raw.set("probe", b"")
        except OutOfMemoryError:
            return
    raise AssertionError("the server goes on taking writes")
