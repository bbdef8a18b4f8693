-- Finds what no commit wrote: entries beyond the newest position that meta knows, for a commit writes both at once. Of one
-- that was taken out again the stream keeps the id as its last, and no commit can be added behind that either.
--
-- KEYS  1 meta  2 changes
-- ARGV  1 entries to give at most  2 bytes after which to stop
-- Gives { the entries, oldest first, the last id of these, or of the stream where it lies beyond that position, else '' }.

local LAST = '18446744073709551615-18446744073709551615' -- behind which nothing can be asked for
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'n')
if not meta[1] or not meta[2] then return { {}, '' } end
local found, bytes, last = {}, 0, meta[1] .. '-' .. meta[2]
while #found < tonumber(ARGV[1]) and bytes < tonumber(ARGV[2]) and last ~= LAST do
  local entry = redis.call('XRANGE', KEYS[2], '(' .. last, '+', 'COUNT', 1)[1]
  if not entry then break end
  for _, field in ipairs(entry[2]) do bytes = bytes + #field end
  found[#found + 1] = entry
  last = entry[1]
end
if #found > 0 then return { found, last } end
if redis.call('EXISTS', KEYS[2]) == 0 then return { {}, '' } end

local stream, ending = redis.call('XINFO', 'STREAM', KEYS[2]), '0-0'
for i = 1, #stream, 2 do
  if stream[i] == 'last-generated-id' then ending = stream[i + 1] end
end
-- Numbers of so many digits are compared as text: a double does not hold them.
local function more(a, b) return #a > #b or #a == #b and a > b end
local time, seq = string.match(ending, '^(%d+)-(%d+)$')
local beyond = more(time, meta[1]) or time == meta[1] and more(seq, meta[2])
return { {}, beyond and ending or '' }
