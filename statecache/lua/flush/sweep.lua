-- Removes hydration tokens whose deadline is long past: their readers are gone.
--
-- KEYS  1 hydrating
-- ARGV  1 cursor  2 ms past the deadline
-- Gives { next cursor (0 = once around), how many were removed }.

local now = redis.call('TIME')
local before = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) - tonumber(ARGV[2])
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 200)
local removed = 0
for i = 1, #page[2], 2 do
  local deadline = tonumber(string.match(page[2][i + 1], '|(%d+)$'))
  if deadline and deadline < before then removed = removed + redis.call('HDEL', KEYS[1], page[2][i]) end
end
return { page[1], removed }
