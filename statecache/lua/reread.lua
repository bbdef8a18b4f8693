-- Lets states that were loaded as quarantined be loaded again, for their change has been taken into its chain.
--
-- KEYS  1 hydrating  2… one state each
-- ARGV  1 change_id  2… the keys of the states
-- Gives how many were removed. A reader that is just loading one loses its token, for it may have asked too early;
-- a state that holds the change itself, or a later one, stays.

local removed = 0
for i = 2, #KEYS do
  redis.call('HDEL', KEYS[1], ARGV[i])
  local state = redis.call('HMGET', KEYS[i], 'op', 'change_id')
  if state[1] == 'quarantined' and state[2] == ARGV[1] then removed = removed + redis.call('UNLINK', KEYS[i]) end
end
return removed
