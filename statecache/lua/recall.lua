#!lua flags=allow-oom
-- Makes states dirty again that Postgres has forgotten: it went back behind what it had acknowledged. It may run when
-- memory is full: what is lost here is lost for good.
--
-- KEYS  1 unflushed  2… one state each
-- ARGV  1 flushed n as Postgres says now
-- Gives how many states are dirty now that were not. A state that anybody writes meanwhile is dirty by itself.

local flushed, recalled = tonumber(ARGV[1]), 0
for i = 2, #KEYS do
  local state = redis.pcall('HMGET', KEYS[i], 'key', 'op', 'position')
  if not state.err and state[1] and (state[2] == 'set' or state[2] == 'delete') then
    local n = tonumber(string.match(state[3] or '', '^%d+%-(%d+)$'))
    if n and n > flushed and not redis.call('ZSCORE', KEYS[1], state[1]) then
      redis.call('PERSIST', KEYS[i])
      redis.call('ZADD', KEYS[1], string.format('%.0f', n), state[1])
      recalled = recalled + 1
    end
  end
end
return recalled
