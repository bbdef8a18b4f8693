-- Finds entries that no commit wrote: those beyond the newest position that meta knows, for a commit writes both at once.
--
-- KEYS  1 meta  2 changes
-- ARGV  1 entries to give at most
-- Gives the entries, oldest first.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'n')
if not meta[1] or not meta[2] then return {} end
return redis.call('XRANGE', KEYS[2], '(' .. meta[1] .. '-' .. meta[2], '+', 'COUNT', ARGV[1])
