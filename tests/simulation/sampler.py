"""Looks, many times during a run, whether what is dirty is safe in Redis: one Lua snapshot a shard, all of a moment.

A dirty state has no time to live, so nothing evicts it; its entry is in the stream, unless it had been flushed and a
Postgres that went back has to be given it again; and a state whose position is beyond the watermark is known to be
dirty. Looked at only while the shard's gate is open: behind a closed one a data
set is still being validated.
"""

from __future__ import annotations

from typing import Any

import redis

from statecache.keys import KeySpace

_SNAPSHOT = """
local meta = redis.call('HMGET', KEYS[1], 'replid', 'flushed', 'n')
local server = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
if not meta[1] or meta[1] ~= server then return { 'closed' } end
local found, dirty = { 'open', 0, meta[2] }, {}
local function look(key, n)
  local state = redis.call('HMGET', ARGV[1] .. key, 'position', 'change_id')
  local told = key .. ' at ' .. (state[1] or '?') .. ' (flushed ' .. meta[2] .. '): '
  if not state[1] then
    found[#found + 1] = told .. 'it is dirty and not in Redis'
    return
  end
  if redis.call('PTTL', ARGV[1] .. key) ~= -1 then found[#found + 1] = told .. 'it is dirty and has a time to live' end
  if tonumber(n) > tonumber(ARGV[2]) and #redis.call('XRANGE', KEYS[2], state[1], state[1]) ~= 1 then
    found[#found + 1] = told .. 'it is dirty and its entry is not in the stream'
  end
end
local members = redis.call('ZRANGE', KEYS[3], '(' .. meta[2], '+inf', 'BYSCORE', 'WITHSCORES')
for i = 1, #members, 2 do
  dirty[members[i]] = true
  found[2] = found[2] + 1
  look(members[i], members[i + 1])
end
for i = 3, #ARGV do
  local position = redis.call('HGET', ARGV[1] .. ARGV[i], 'position')
  local n = position and tonumber(string.match(position, '%-(%d+)$'))
  if n and n > tonumber(meta[2]) and not dirty[ARGV[i]] then
    found[#found + 1] = ARGV[i] .. ' at ' .. position .. ' (flushed ' .. meta[2] .. '): it is dirty and nobody knows'
  end
end
return found
"""


class Sampler:
    """The snapshots of a run; `findings` are violations, `dirty` counts the dirty states that were looked at."""

    def __init__(self, keys: KeySpace, watched: tuple[str, ...]) -> None:
        self._keys = keys
        self._watched = {shard: [key for key in watched if keys.shard(key) == shard] for shard in range(keys.shards)}
        self._reached = dict.fromkeys(range(keys.shards), 0)
        self._prefixes = {shard: self._prefix(shard) for shard in range(keys.shards)}
        self.findings: list[str] = []
        self.snapshots = 0
        self.dirty = 0

    def _prefix(self, shard: int) -> str:
        """Return how the names of the shard's states begin; its meta key begins in the same way."""
        name = next(f"probe/{number}" for number in range(10_000) if self._keys.shard(f"probe/{number}") == shard)
        return self._keys.state(name).removesuffix(name)

    def look(self, raw: redis.Redis) -> int:
        """Take one snapshot of each shard and return how many gates were open; raise redis-py's errors."""
        opened = 0
        for shard, watched in self._watched.items():
            keys = self._keys
            names = [keys.meta(shard), keys.changes(shard), keys.unflushed(shard)]
            told = self._prefixes[shard], self._reached[shard]
            reply: Any = raw.eval(_SNAPSHOT, len(names), *names, *told, *watched)
            if reply[0] != b"open":
                continue
            opened += 1
            self.snapshots += 1
            self.dirty += reply[1]
            self._reached[shard] = max(self._reached[shard], int(reply[2]))
            self.findings += [f"shard {shard}: {line.decode()}" for line in reply[3:]]
        return opened
