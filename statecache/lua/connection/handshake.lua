-- Tells what a new connection must know before it is used.
--
-- KEYS  1 meta
-- ARGV  1 fence (on|off)  2 the commands that are needed, parted by semicolons, their words by blanks
-- Gives { shards, hash, prefix, schema, cluster, server's time in ms, role, … }, '' for what is not pinned or not shown;
-- then what is in the way: of the commands, as in the script rights, or, behind an exclamation mark, what this server
-- cannot do. The role of a node of a Redis Cluster is 'cluster', and nothing follows.

-- include permitted
-- include server_time

local pin = redis.pcall('HMGET', KEYS[1], 'shards', 'hash', 'prefix', 'schema', 'cluster')
local answer = {}
for i = 1, 5 do answer[i] = not pin.err and pin[i] or '' end
answer[6] = server_time()
local check, fenced = redis.acl_check_cmd, ARGV[1] == 'on'
local info = fenced and redis.pcall('INFO', 'replication')
answer[7] = type(info) == 'string' and string.match(info, 'role:(%a+)') or ''
local asked, may = false, false
if check then asked, may = pcall(check, 'INFO', 'cluster') end
local mode = asked and may and redis.pcall('INFO', 'cluster')
if type(mode) == 'string' and string.find(mode, 'cluster_enabled:1') then
  answer[7] = 'cluster'
  return answer
end
if fenced and not check then
  answer[#answer + 1] = '!script flags'
  return answer
end
if check then ask(answer, check, ARGV[2]) end
if fenced then
  local unknown = redis.pcall('SPUBLISH').err
  if string.find(unknown, '[Uu]nknown') then answer[#answer + 1] = '!sharded pub/sub' end
  if type(info) == 'string' and not string.find(info, 'master_replid:%x') then
    answer[#answer + 1] = '!a replication id in INFO'
  end
end
return answer
