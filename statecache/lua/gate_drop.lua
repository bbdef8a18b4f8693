-- Deletes states that are stale in this data set, while the claim that found them so stands.
--
-- KEYS  1 meta  2 unflushed  3 changes  4… one stale state each
-- ARGV  1 token  2 how many keys  then the keys of the states  then ids of stream entries that belong to no lineage
-- Gives how many states were deleted, or -1 where the claim is lost.

if redis.call('HGET', KEYS[1], 'claim') ~= ARGV[1] then return -1 end
local count, dropped = tonumber(ARGV[2]), 0
for i = 1, count do
  dropped = dropped + redis.call('UNLINK', KEYS[3 + i])
  redis.call('ZREM', KEYS[2], ARGV[2 + i])
end
for i = 3 + count, #ARGV do redis.call('XDEL', KEYS[3], ARGV[i]) end
return dropped
