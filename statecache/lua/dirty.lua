-- Tells which keys of a shard hold changes that Postgres may not have.
--
-- KEYS  1 meta  2 written
-- Gives their names.

local flushed = redis.call('HGET', KEYS[1], 'flushed') or '-1'
return redis.call('ZRANGE', KEYS[2], '(' .. flushed, '+inf', 'BYSCORE')
