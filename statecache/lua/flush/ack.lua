#!lua flags=allow-oom
-- Acknowledges a watermark that Postgres has committed. It may run when memory is full: it is what makes room.
--
-- KEYS  1 meta  2 events (a channel)  3… states that forked
-- ARGV  1 epoch  2 replid  3 flushed n  4 flushed entries  5 flushed bytes  6 excepted n  7… change_id of each fork
-- Gives 1, or 0 where the shard's epoch or server is another, or its data set ends before that watermark; WRONGTYPE,
-- with nothing done, where meta is not ours.
-- Forward only: an acknowledgement that comes late moves nothing back. No other state is touched, for any write to
-- one would invalidate near caches and abort transactions. A state is dirty for as long as its n is above the watermark.
-- What is published says whose watermark it is: channels know no databases, and another deployment may have the prefix.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'replid', 'n', 'flushed', 'excepted', 'cluster',
  'retired')
local flushed = tonumber(ARGV[3])
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] or flushed > tonumber(meta[3]) then return 0 end
if flushed > tonumber(meta[4] or '0') then
  redis.call('HSET', KEYS[1], 'flushed', ARGV[3], 'flushed_entries', ARGV[4], 'flushed_bytes', ARGV[5])
  meta[4] = ARGV[3]
end
if tonumber(ARGV[6]) > tonumber(meta[5] or '0') then
  redis.call('HSET', KEYS[1], 'excepted', ARGV[6])
  meta[5] = ARGV[6]
end
if tonumber(meta[7] or '0') > tonumber(meta[3]) then -- of a branch that an opener of an earlier release has set aside
  redis.call('HSET', KEYS[1], 'retired', meta[3])
end
for i = 3, #KEYS do
  if redis.pcall('HGET', KEYS[i], 'change_id') == ARGV[4 + i] then redis.call('UNLINK', KEYS[i]) end
end
local told = { ARGV[1], meta[4] or '0', meta[5] or '0', meta[6] or '' }
redis.call('SPUBLISH', KEYS[2], table.concat(told, ' '))
return 1
