-- Confirms that this server holds a change that was looked up, and writes something, so that a WAIT behind it on the
-- same connection counts the copies of that change too.
--
-- KEYS  1 meta  2 changes
-- ARGV  1 nonce  2 change_id  3 fence (on|off)  4 the position at which a stream held it, '' where Postgres holds it
-- Gives { nonce, verdict }:
--   OK     it is here
--   MUTE   it is here, but there was no memory to write: a WAIT behind it vouches for nothing
--   GONE   it is not here, or this server is not the primary that opened the shard's epoch: look it up again

local meta = redis.pcall('HMGET', KEYS[1], 'epoch', 'replid')
if meta.err then return meta end
local fence = ARGV[3]
-- include lineage
if not meta[1] or meta[2] ~= server or role ~= 'master' then return { ARGV[1], 'GONE' } end
if ARGV[4] ~= '' then
  local entry = redis.call('XRANGE', KEYS[2], ARGV[4], ARGV[4])[1]
  if not entry or entry[2][4] ~= ARGV[2] then return { ARGV[1], 'GONE' } end
end
local written = redis.pcall('HINCRBY', KEYS[1], 'repeats', 1)
if type(written) ~= 'table' then return { ARGV[1], 'OK' } end
return string.find(written.err, 'OOM') and { ARGV[1], 'MUTE' } or written
