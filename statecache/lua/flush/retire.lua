#!lua flags=allow-oom
-- Lets states be evicted that Postgres holds for long enough, and the entries leave that brought them there. It may run
-- when memory is full: it is what makes room. A state that has a time to live keeps it.
--
-- KEYS  1 meta  2 changes  3 written  4… one state each
-- ARGV  1 epoch  2 flushed n as Postgres says  3 n up to which states may be evicted  4 id before which entries leave
--       ('' = none)  5 entries that leave at most  6 ttl in ms where a state names none  7 positions that Postgres did not
--       take, blanks between them  8… the keys of the states
-- Meta keeps up to which n names may be off the list of what was written, though entries are still there.
-- Gives { states that may be evicted now, entries that left, 1 where more may leave }, or nothing where the shard is at
-- another epoch or that n is not behind its watermark.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'flushed', 'retired')
local upto, excepted = tonumber(ARGV[3]), ' ' .. ARGV[7] .. ' '
if meta[1] ~= ARGV[1] or upto > math.min(tonumber(meta[2]), tonumber(ARGV[2])) then return {} end
if #KEYS > 3 and upto > tonumber(meta[3] or '0') then redis.call('HSET', KEYS[1], 'retired', ARGV[3]) end
local marked = 0
for i = 4, #KEYS do
  local key = ARGV[4 + i]
  local state, n = redis.pcall('HMGET', KEYS[i], 'position', 'ttl'), nil
  if not state.err and state[1] then n = tonumber(string.match(state[1], '%-(%d+)$')) end
  if n and n <= upto and not string.find(excepted, ' ' .. state[1] .. ' ', 1, true) then
    local ttl = tonumber(state[2] or '') or 0
    marked = marked + redis.call('PEXPIRE', KEYS[i], ttl > 0 and state[2] or ARGV[6], 'NX')
  end
  if not n or n <= upto then redis.call('ZREM', KEYS[3], key) end
end
if ARGV[4] == '' then return { marked, 0, 0 } end
local left, more = redis.call('XTRIM', KEYS[2], 'MINID', '~', ARGV[4], 'LIMIT', ARGV[5]), 1
if left == 0 then -- what is left of them shares its node with entries that stay
  left, more = redis.call('XTRIM', KEYS[2], 'MINID', ARGV[4]), 0
end
return { marked, left, more }
