-- Takes hydration tokens back whose reader could not read.
--
-- KEYS  1 hydrating
-- ARGV  1 token  2… the keys of the states
-- Gives how many were taken back; a token of somebody else stays.

local forgotten, mine = 0, ARGV[1] .. '|'
for i = 2, #ARGV do
  local standing = redis.call('HGET', KEYS[1], ARGV[i])
  if standing and string.sub(standing, 1, #mine) == mine then
    forgotten = forgotten + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return forgotten
