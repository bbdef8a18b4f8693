-- Reads states of one shard, which must be open on this server, and this server a primary.
--
-- KEYS  1 meta  2… the states
-- ARGV  1 fence (on|off)  2… the fields to read
-- Gives { 'CLOSED' }, { 'FOREIGN', Redis key, reason }, or { 'OK', epoch, replid, then of each state the fields' values };
-- the error READONLY where this server is no primary.

local head = redis.pcall('HMGET', KEYS[1], 'epoch', 'replid')
if head.err then return { 'FOREIGN', KEYS[1], head.err } end
local epoch, replid, fence = head[1], head[2], ARGV[1]
-- include lineage
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
if not epoch or replid ~= server then return { 'CLOSED' } end
local answer = { 'OK', epoch, replid }
for i = 2, #KEYS do
  local state = redis.pcall('HMGET', KEYS[i], unpack(ARGV, 2))
  if state.err then return { 'FOREIGN', KEYS[i], state.err } end
  answer[i + 2] = state
end
return answer
