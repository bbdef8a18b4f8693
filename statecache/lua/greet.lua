-- Tells what a new connection must know before it is used.
--
-- KEYS  1 meta  2 changes  3 unflushed  4 hydrating  5 a state key that is never written
-- ARGV  1 fence (on|off)
-- Gives { shards, hash, prefix, schema, cluster, commands that this user may not run… }; '' where nothing is pinned.

local pin = redis.call('HMGET', KEYS[1], 'shards', 'hash', 'prefix', 'schema', 'cluster')
local answer = {}
for i = 1, 5 do answer[i] = pin[i] or '' end
local check = redis.acl_check_cmd
if check then
  local needed = {
    { 'HMGET', KEYS[1], 'a' }, { 'HSET', KEYS[1], 'a', 'b' }, { 'HINCRBY', KEYS[1], 'a', 1 }, { 'HGETALL', KEYS[1] },
    { 'XADD', KEYS[2], '*', 'a', 'b' }, { 'XRANGE', KEYS[2], '-', '+' }, { 'ZADD', KEYS[3], 1, 'a' },
    { 'ZSCORE', KEYS[3], 'a' }, { 'ZRANGE', KEYS[3], 0, -1 }, { 'HLEN', KEYS[4] }, { 'HDEL', KEYS[4], 'a' },
    { 'HSET', KEYS[5], 'a', 'b' }, { 'PERSIST', KEYS[5] }, { 'PEXPIRE', KEYS[5], 1 }, { 'EXISTS', KEYS[5] },
    { 'TYPE', KEYS[5] }, { 'TIME' },
  }
  if ARGV[1] == 'on' then needed[#needed + 1] = { 'INFO', 'replication' } end
  for _, command in ipairs(needed) do
    if not check(unpack(command)) then answer[#answer + 1] = command[1] .. ' ' .. (command[2] or '') end
  end
end
return answer
