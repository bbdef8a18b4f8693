-- Measures a shard's stream, for those who watch over it. Nothing is decided by it.
--
-- KEYS  1 changes
-- ARGV  1 id up to which entries are flushed
-- Gives { entries, the shard's bytes before the first entry, time of the oldest unflushed entry }, '' for what there is
-- not or what a commit did not write.

local answer = { redis.call('XLEN', KEYS[1]), '', '' }
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not first then return answer end
local fields = first[2]
if fields[1] == 'format' and fields[11] == 'bytes' and tonumber(fields[12]) then
  local before = tonumber(fields[12])
  for at = 13, #fields, 2 do
    if string.match(fields[at], '^key%d+$') then before = before - #fields[at + 1] - 200 end
    if string.match(fields[at], '^value%d+$') then before = before - #fields[at + 1] end
  end
  answer[2] = string.format('%.0f', math.max(0, before))
end
local oldest = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 1)[1]
if oldest and oldest[2][5] == 'at' then answer[3] = oldest[2][6] end
return answer
