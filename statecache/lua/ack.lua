#!lua flags=allow-oom
-- Acknowledges a watermark that Postgres has committed. It may run when memory is full: it is what makes room.
--
-- KEYS  1 meta  2 unflushed  3 events (a channel)  4… states that forked
-- ARGV  1 epoch  2 replid  3 flushed n  4 flushed entries  5 flushed bytes  6 excepted n  7… change_id of each fork
-- Gives 1, or 0 where the shard's epoch or server is another, or its data set ends before that watermark; WRONGTYPE,
-- with nothing done, where a key is not ours.
-- Forward only: an acknowledgement that comes late moves nothing back. No other state is touched, for any write to
-- one would invalidate near caches and abort transactions.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'replid', 'n', 'flushed', 'excepted')
local flushed = tonumber(ARGV[3])
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'zset' and kind ~= 'none' then return redis.error_reply('WRONGTYPE ' .. KEYS[2] .. ' is a ' .. kind) end
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] or flushed > tonumber(meta[3]) then return 0 end
if flushed > tonumber(meta[4] or '0') then
  redis.call('HSET', KEYS[1], 'flushed', ARGV[3], 'flushed_entries', ARGV[4], 'flushed_bytes', ARGV[5])
  meta[4] = ARGV[3]
end
if tonumber(ARGV[6]) > tonumber(meta[5] or '0') then
  redis.call('HSET', KEYS[1], 'excepted', ARGV[6])
  meta[5] = ARGV[6]
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, ARGV[3])
for i = 4, #KEYS do
  if redis.pcall('HGET', KEYS[i], 'change_id') == ARGV[3 + i] then redis.call('UNLINK', KEYS[i]) end
end
redis.call('SPUBLISH', KEYS[3], ARGV[1] .. ' ' .. (meta[4] or '0') .. ' ' .. (meta[5] or '0'))
return 1
