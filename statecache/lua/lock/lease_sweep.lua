-- Removes leases, places in queues and withdrawals whose deadline is long past: whoever they were for is gone.
--
-- KEYS  1 leases  2 waiters
-- ARGV  1 ms past the deadline  2 cursor in the leases  3 cursor in the waiters
-- Gives { the next cursors (0 = once around), how many were removed }.

local now = redis.call('TIME')
local before = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) - tonumber(ARGV[1])
local removed = 0

local function latest(text)
  local last = tonumber(text)
  for until_ms in string.gmatch(text, '[^=]until=(%d+) ') do last = math.max(last or 0, tonumber(until_ms)) end
  return last
end

local cursors = {}
for at, key in ipairs(KEYS) do
  local page = redis.call('HSCAN', key, ARGV[at + 1], 'COUNT', 200)
  cursors[at] = page[1]
  for i = 1, #page[2], 2 do
    local last = latest(page[2][i + 1])
    if last and last < before then removed = removed + redis.call('HDEL', key, page[2][i]) end
  end
end
return { cursors[1], cursors[2], removed }
