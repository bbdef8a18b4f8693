-- Takes hydration tokens for states that are not in Redis.
--
-- KEYS  1 meta  2 unflushed  3 hydrating  4… one state each
-- ARGV  1 fence (on|off)  2 token  3 ms that it stands  4 tokens of the same reader whose answers were lost, spaces
--       between them  5 purpose (read|write)  6… the keys of the states
-- Gives { 'FENCED' }, { 'FOREIGN', Redis key, reason }, or { 'OK', epoch, what Postgres has to hold, then per state: PRESENT (another was quicker),
-- DIRTY (not in Redis, not yet in Postgres: wait), WAIT (somebody else's token is young), TAKEN, FULL (Redis has no
-- memory for a token, or who reads is refused one for its disk or its replicas; nobody else fills the state then either) };
-- the error READONLY where this server is no primary.

local function error_of(reply) return type(reply) == 'table' and reply.err end

local head = redis.pcall('HMGET', KEYS[1], 'epoch', 'replid', 'flushed', 'retired')
if head.err then return { 'FOREIGN', KEYS[1], head.err } end
local fence = ARGV[1]
-- include lineage
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
if not head[1] or head[2] ~= server then return { 'FENCED' } end
local now = redis.call('TIME')
local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local token = string.format('%s|%s|%.0f', ARGV[2], head[1], ms + tonumber(ARGV[3]))
-- include held
local writes, answer, mine = ARGV[5] == 'write', { 'OK', head[1], least }, {}
for one in string.gmatch(ARGV[4], '%S+') do mine[one] = true end
for i = 4, #KEYS do
  local key, verdict = ARGV[i + 2], 'TAKEN'
-- include loadable
  if kind == 'hash' then
    verdict = 'PRESENT'
  else
    local whose, since, ends = string.match(standing or '', '^([^|]*)|(%d+)|(%d+)$')
    local deadline = whose and not mine[whose] and since == head[1] and tonumber(ends) -- of this epoch
    if dirty and tonumber(dirty) > tonumber(head[3] or '-1') then
      verdict = 'DIRTY'
    else
      local waits = deadline and deadline > ms
      local tried -- of a token that stands: what deletes nothing tells whether anything could be written
      if waits then tried = redis.pcall('HDEL', KEYS[3], '') else tried = redis.pcall('HSET', KEYS[3], key, token) end
      local refused = error_of(tried)
-- include unwritable
      if refused then verdict = 'FULL' elseif waits then verdict = 'WAIT' end
    end
  end
  answer[#answer + 1] = verdict
end
return answer
