-- Reads a state of which the shard must be open on this server, and this server a primary. Without a state it only tells
-- whether that is so.
--
-- KEYS  1 meta  2 state, or none
-- ARGV  1 fence (on|off)  2… the fields to read
-- Gives { 'CLOSED', the epoch and version of the state that is here all the same, or '' }, { 'FOREIGN', Redis key,
-- reason }, or { 'OK', epoch, replid, the fields' values, the server's time }; the error READONLY where this server is no
-- primary.

local head = redis.pcall('HMGET', KEYS[1], 'epoch', 'replid')
if head.err then return { 'FOREIGN', KEYS[1], head.err } end
local epoch, replid, fence = head[1], head[2], ARGV[1]
-- include lineage
-- include server_time
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
local open = epoch and replid == server
if not KEYS[2] then return open and { 'OK', epoch, replid } or { 'CLOSED', '', '' } end
if not open then
  local here = redis.pcall('HMGET', KEYS[2], 'epoch', 'version')
  return { 'CLOSED', here[1] or '', here[2] or '' }
end
local state = redis.pcall('HMGET', KEYS[2], unpack(ARGV, 2))
if state.err then return { 'FOREIGN', KEYS[2], state.err } end
return { 'OK', epoch, replid, state, server_time() }
