-- Lets states that were loaded as quarantined be loaded again, for their change has been taken into its chain.
--
-- KEYS  1 hydrating  2 written  3… one state each
-- ARGV  1 change_id  2… the keys of the states
-- Gives how many were removed. A reader that is just loading one loses its token, for it may have asked too early. A
-- state that holds the change itself stays, and may be evicted one day, for Postgres holds it now; a later one stays.

local removed = 0
for i = 3, #KEYS do
  local key = ARGV[i - 1]
  redis.call('HDEL', KEYS[1], key)
  local state = redis.call('HMGET', KEYS[i], 'op', 'change_id', 'position')
  local n = state[2] == ARGV[1] and string.match(state[3] or '', '%-(%d+)$')
  if state[1] == 'quarantined' and state[2] == ARGV[1] then
    removed = removed + redis.call('UNLINK', KEYS[i])
  elseif n then
    redis.call('ZADD', KEYS[2], n, key)
  end
end
return removed
