-- Opens a shard's gate at its new epoch and makes every fixed key of the shard exist.
--
-- KEYS  1 meta  2 changes  3 unflushed  4 hydrating  5 leases  6 waiters
-- ARGV  1 token  2 server's replid at the reservation  3 fence (on|off)  4 epoch  5 n  6 entries  7 bytes
--       8 flushed  9 flushed entries  10 flushed bytes  11 excepted
--       12 shards  13 hash  14 prefix  15 schema  16 cluster
--       17 the policies of namespaces, which begin with their revision
--       18… pairs: key, n of its newest change still to be flushed (where the stream was gone through)
-- Gives 1, or 0 where the reservation is lost, the server is another, or the stream has gone beyond the new epoch.

local fence = ARGV[3]
-- include lineage
if redis.call('HGET', KEYS[1], 'reservation') ~= ARGV[1] or server ~= ARGV[2] then return 0 end
local held = redis.pcall('HDEL', KEYS[4], '_') -- first: a script that has removed something may go on when memory is full
if type(held) == 'table' then redis.call('DEL', KEYS[4]) end -- another program's; else what is known of attempts stays
local start = ARGV[4] .. '-' .. ARGV[5]
local added = redis.pcall('XADD', KEYS[2], start, '_', '_')
if type(added) == 'table' and added.err then return 0 end
redis.call('XDEL', KEYS[2], start)
redis.call('ZADD', KEYS[3], -1, '_')
for i = 18, #ARGV, 2 do redis.call('ZADD', KEYS[3], ARGV[i + 1], ARGV[i]) end
redis.call('HSET', KEYS[4], '_', '_')
for i = 5, #KEYS do redis.pcall('HSET', KEYS[i], '_', '_') end -- what is another program's there only hinders locks
redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'replid', server, 'n', ARGV[5], 'entries', ARGV[6], 'bytes', ARGV[7],
  'flushed', ARGV[8], 'flushed_entries', ARGV[9], 'flushed_bytes', ARGV[10], 'excepted', ARGV[11],
  'shards', ARGV[12], 'hash', ARGV[13], 'prefix', ARGV[14], 'schema', ARGV[15], 'cluster', ARGV[16])
if tonumber(redis.call('HGET', KEYS[1], 'retired') or '0') > tonumber(ARGV[5]) then -- of what was set aside
  redis.call('HSET', KEYS[1], 'retired', ARGV[5])
end
local known = tonumber(string.match(redis.call('HGET', KEYS[1], 'enforced') or '', '^%d+')) or 0
if tonumber(string.match(ARGV[17], '^%d+')) > known then redis.call('HSET', KEYS[1], 'enforced', ARGV[17]) end
redis.call('HDEL', KEYS[1], 'reservation', 'continues', 'reserved_until')
return 1
