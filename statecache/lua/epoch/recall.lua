#!lua flags=allow-oom
-- Makes states dirty again that lie beyond the watermark: Postgres went back behind what it had acknowledged. It may run
-- when memory is full: what is lost here is lost for good.
--
-- KEYS  1 meta  2 written  3… one state each
-- Gives how many states are dirty now that were not on the list of what was written. A state that anybody writes
-- meanwhile is dirty by itself.

local flushed, recalled = tonumber(redis.call('HGET', KEYS[1], 'flushed') or ''), 0
for i = 3, flushed and #KEYS or 0 do
  local state = redis.pcall('HMGET', KEYS[i], 'key', 'op', 'position')
  if not state.err and state[1] and (state[2] == 'set' or state[2] == 'delete') then
    local n = tonumber(string.match(state[3] or '', '^%d+%-(%d+)$'))
    if n and n > flushed then
      redis.call('PERSIST', KEYS[i])
      recalled = recalled + redis.call('ZADD', KEYS[2], string.format('%.0f', n), state[1])
    end
  end
end
return recalled
