-- Tells which keys of a shard hold changes that Postgres may not have.
--
-- KEYS  1 meta  2 written
-- ARGV  1 the watermark that Postgres was seen to have, where it went back, or none
-- Gives their names.

local flushed = redis.call('HGET', KEYS[1], 'flushed') or '-1'
if ARGV[1] and tonumber(ARGV[1]) < tonumber(flushed) then flushed = ARGV[1] end
return redis.call('ZRANGE', KEYS[2], '(' .. flushed, '+inf', 'BYSCORE')
