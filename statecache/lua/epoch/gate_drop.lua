-- Deletes what is stale, forked or of no lineage in a data set while the reservation that found it stands, and renews it.
--
-- KEYS  1 meta  2 unflushed  3 changes  4… one state each
-- ARGV  1 token  2 ms that it stands from now on  3 how many states  then their keys  then for each the change_id
--       that it must have, '' for any  then ids of stream entries
-- Gives how many states were deleted, or -1 where the reservation is lost.

if redis.call('HGET', KEYS[1], 'reservation') ~= ARGV[1] then return -1 end
local count, dropped = tonumber(ARGV[3]), 0
redis.call('HDEL', KEYS[1], 'reserved_until') -- first: a script that has removed something may go on when memory is full
for i = 1, count do
  local expected = ARGV[3 + count + i]
  if expected == '' or redis.pcall('HGET', KEYS[3 + i], 'change_id') == expected then
    dropped = dropped + redis.call('UNLINK', KEYS[3 + i])
    redis.call('ZREM', KEYS[2], ARGV[3 + i])
  end
end
for i = 4 + 2 * count, #ARGV do redis.call('XDEL', KEYS[3], ARGV[i]) end
local now = redis.call('TIME')
local till = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) + tonumber(ARGV[2])
redis.call('HSET', KEYS[1], 'reserved_until', string.format('%.0f', till))
return dropped
