-- Reads a state of which the shard must be open on this server.
--
-- KEYS  1 meta  2 state
-- ARGV  1 fence (on|off)  2… the fields to read
-- Gives { 'FENCED' }, { 'FOREIGN', Redis key, reason }, or { 'OK', epoch, replid, the fields' values }.

local head = redis.pcall('HMGET', KEYS[1], 'epoch', 'replid')
if head.err then return { 'FOREIGN', KEYS[1], head.err } end
local server = 'off'
if ARGV[1] == 'on' then server = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') end
if not head[1] or head[2] ~= server then return { 'FENCED' } end
local state = redis.pcall('HMGET', KEYS[2], unpack(ARGV, 2))
if state.err then return { 'FOREIGN', KEYS[2], state.err } end
return { 'OK', head[1], head[2], state }
