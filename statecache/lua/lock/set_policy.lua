-- Gives a shard its copy of the recorded policies, unless it has a newer one.
--
-- KEYS  1 meta
-- ARGV  1 the policies: their revision, then the namespaces whose locks are enforced, each with a blank behind it
-- Gives the revision that the shard has now, or -1 where the shard holds no data set yet.

if redis.call('HEXISTS', KEYS[1], 'epoch') == 0 then return -1 end
local known = tonumber(string.match(redis.call('HGET', KEYS[1], 'enforced') or '', '^%d+')) or 0
local given = tonumber(string.match(ARGV[1], '^%d+'))
if given <= known then return known end
redis.call('HSET', KEYS[1], 'enforced', ARGV[1])
return given
