-- Removes entries that no commit wrote. Their ids may be so high that no commit can be added behind them, and deleting
-- them leaves the stream's last id where it is; so the stream is written anew without them, its last id the newest commit's.
--
-- KEYS  1 meta  2 changes
-- ARGV  ids of the entries to remove
-- Gives how many entries that no commit wrote are left; unless that is 0, nothing was done.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'n')
if not meta[1] or not meta[2] then return 0 end
local head, spare = meta[1] .. '-' .. meta[2], KEYS[2] .. '~'
local asked, left = {}, 0
for _, id in ipairs(ARGV) do asked[id] = true end
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '(' .. head, '+')) do
  if not asked[entry[1]] then left = left + 1 end
end
if left > 0 then return left end
redis.call('DEL', spare)
local from, last = '-', ''
repeat
  local entries = redis.call('XRANGE', KEYS[2], from, head, 'COUNT', 100)
  for _, entry in ipairs(entries) do
    redis.call('XADD', spare, entry[1], unpack(entry[2]))
    last = entry[1]
    from = '(' .. last
  end
until #entries == 0
if last ~= head then
  redis.call('XADD', spare, head, '_', '_')
  redis.call('XDEL', spare, head)
end
redis.call('RENAME', spare, KEYS[2])
return 0
