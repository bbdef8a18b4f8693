-- Reads on in a shard's stream, of which only entries are given that write to a group.
--
-- KEYS  1 meta  2 changes
-- ARGV  1 fence (on|off)  2 the id behind which to read  3 how many entries to look at  4 the group  5 bytes to give at most
-- Gives { 'CLOSED' } where the shard is not open here, or { 'OK', epoch, newest n, n of the first entry looked at, id of the
-- last, how many were looked at, { id, fields } … }; the error READONLY where this server is no primary.

local head = redis.call('HMGET', KEYS[1], 'epoch', 'replid', 'n')
local fence = ARGV[1]
-- include lineage
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
if not head[1] or head[2] ~= server then return { 'CLOSED' } end
local group, below, room = ARGV[4], ARGV[4] .. '/', tonumber(ARGV[5])
local answer = { 'OK', head[1], head[3] or '0', '', ARGV[2], 0 }
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '(' .. ARGV[2], '+', 'COUNT', ARGV[3])) do
  local fields = entry[2]
  if answer[6] == 0 then answer[4] = string.match(entry[1], '(%d+)$') end
  for i = 1, #fields, 2 do
    local key = string.find(fields[i], '^key%d+$') and fields[i + 1]
    if key and (key == group or string.sub(key, 1, #below) == below) then
      for j = 2, #fields, 2 do room = room - #fields[j] end
      answer[#answer + 1] = entry
      break
    end
  end
  answer[5], answer[6] = entry[1], answer[6] + 1
  if room <= 0 then break end
end
return answer
