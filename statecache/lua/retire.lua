#!lua flags=allow-oom
-- Lets entries leave a shard's stream and marks the states that are still as they left them as evictable. It may run
-- when memory is full: it is what makes room.
--
-- KEYS  1 meta  2 changes  3 unflushed  4… one state each
-- ARGV  1 epoch  2 flushed n as Postgres says  3 id of the last entry that leaves
--       4… per state: its key, its change_id in the newest of these entries, ttl in ms
-- Gives how many states were marked, or -1 where the shard is at another epoch or the entry is not behind its watermark.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'flushed')
local epoch, n = string.match(ARGV[3], '^(%d+)-(%d+)$')
if meta[1] ~= ARGV[1] or tonumber(n) > math.min(tonumber(meta[2]), tonumber(ARGV[2])) then return -1 end
local marked = 0
for i = 4, #KEYS do
  local at = 4 + (i - 4) * 3
  if redis.pcall('HGET', KEYS[i], 'change_id') == ARGV[at + 1] and not redis.call('ZSCORE', KEYS[3], ARGV[at]) then
    marked = marked + redis.call('PEXPIRE', KEYS[i], ARGV[at + 2])
  end
end
redis.call('XTRIM', KEYS[2], 'MINID', epoch .. '-' .. string.format('%.0f', tonumber(n) + 1))
return marked
