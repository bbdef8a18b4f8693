-- Finds where in a shard's stream the changes after a position begin. Ids are ordered by epoch first, so changes of
-- earlier epochs that are still to be flushed stand before the row's epoch.
--
-- KEYS  1 changes
-- ARGV  1 flushed n  2 epoch of the row
-- Gives the id after which to read: everything up to it is flushed.

local flushed, row = tonumber(ARGV[1]), tonumber(ARGV[2])
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local epoch = first and string.match(first[1], '^(%d+)')
while epoch and tonumber(epoch) <= row do
  local from = epoch .. '-' .. string.format('%.0f', flushed + 1)
  local entry = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', 1)[1]
  local n
  if not entry then break end
  epoch, n = string.match(entry[1], '^(%d+)-(%d+)$')
  if tonumber(epoch) <= row and tonumber(n) > flushed then
    return epoch .. '-' .. string.format('%.0f', tonumber(n) - 1)
  end
end
return ARGV[2] .. '-' .. ARGV[1]
