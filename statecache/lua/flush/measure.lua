-- Measures a shard's stream, for those who watch over it. Nothing is decided by it; fields are found by their names.
--
-- KEYS  1 changes
-- ARGV  1 id up to which entries are flushed
-- Gives { entries, the shard's bytes before the first entry, time of the oldest unflushed entry }, '' for what there is
-- not or what a commit did not write.

local answer = { redis.call('XLEN', KEYS[1]), '', '' }
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local before, weight = nil, 0
for i = 1, first and #first[2] or 0, 2 do
  local name, value = first[2][i], first[2][i + 1]
  if name == 'bytes' then before = tonumber(value) end
  if string.match(name, '^key%d+$') then weight = weight + #value + 200 end
  if string.match(name, '^value%d+$') then weight = weight + #value end
end
if before then answer[2] = string.format('%.0f', math.max(0, before - weight)) end
local oldest = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 1)[1]
for i = 1, oldest and #oldest[2] or 0, 2 do
  if oldest[2][i] == 'at' then answer[3] = oldest[2][i + 1] end
end
return answer
