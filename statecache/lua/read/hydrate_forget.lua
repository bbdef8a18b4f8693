-- Takes hydration tokens back whose reader could not read, or was cancelled.
--
-- KEYS  1 hydrating
-- ARGV  1 the reader's tokens, spaces between them  2… the keys of the states
-- Gives how many were taken back; a token of somebody else stays.

local forgotten, mine = 0, {}
for one in string.gmatch(ARGV[1], '%S+') do mine[one] = true end
for i = 2, #ARGV do
  local standing = redis.call('HGET', KEYS[1], ARGV[i])
  if standing and mine[string.match(standing, '^[^|]*')] then
    forgotten = forgotten + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return forgotten
