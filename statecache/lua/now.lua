-- Says what time it is on the server of a shard.
--
-- KEYS  1 meta
-- Gives the time in ms.

local now = redis.call('TIME')
return now[1] * 1000 + (now[2] - now[2] % 1000) / 1000
