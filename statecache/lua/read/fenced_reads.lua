-- Reads states of one shard, which must be open on this server, and this server a primary.
--
-- KEYS  1 meta  2… the states
-- ARGV  1 fence (on|off)  2 the cluster that is asked, '' where it is not known  3… the fields to read
-- Gives { 'CLOSED' }, { 'FOREIGN', Redis key, reason }, or { 'OK', epoch, replid, then of each state the fields' values };
-- the error READONLY where this server is no primary, or the data set another cluster's.

local head = redis.pcall('HMGET', KEYS[1], 'epoch', 'replid', 'cluster')
if head.err then return { 'FOREIGN', KEYS[1], head.err } end
local epoch, replid, owner, cluster = head[1], head[2], head[3], ARGV[2]
local fence = ARGV[1]
-- include lineage
-- include primary
if not epoch or replid ~= server then return { 'CLOSED' } end
local answer = { 'OK', epoch, replid }
for i = 2, #KEYS do
  local state = redis.pcall('HMGET', KEYS[i], unpack(ARGV, 3))
  if state.err then return { 'FOREIGN', KEYS[i], state.err } end
  answer[i + 2] = state
end
return answer
