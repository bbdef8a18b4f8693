-- Finds entries that no commit wrote: those beyond the newest position that meta knows, for a commit writes both at once.
--
-- KEYS  1 meta  2 changes
-- ARGV  1 entries to give at most  2 bytes after which to stop
-- Gives the entries, oldest first.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'n')
local found, bytes, from = {}, 0, nil
if not meta[1] or not meta[2] then return found end
from = '(' .. meta[1] .. '-' .. meta[2]
while #found < tonumber(ARGV[1]) and bytes < tonumber(ARGV[2]) do
  local entry = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', 1)[1]
  if not entry then break end
  for _, field in ipairs(entry[2]) do bytes = bytes + #field end
  found[#found + 1] = entry
  from = '(' .. entry[1]
end
return found
