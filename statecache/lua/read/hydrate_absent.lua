-- Installs that states are absent of which Postgres was read to hold nothing, where that still proves it. No token is
-- taken: the read came first, and what it may have missed is told by the watermarks. A state that a commit has made is
-- here, or dirty, or else flushed; it is flushed in one transaction with a watermark that reaches it, and its row stays
-- for ever. So where Redis knows of no later watermark than the one that stood in Postgres before the keys were looked
-- for, in this epoch, whatever was flushed would have been found. It is compared in the moment of the install, so nothing comes
-- between. A reader who is told the watermark and compares by himself may be told before he looks in Postgres, or while he
-- does: the state was absent in the moment in which he was told. What changes a row beside the watermark, as taking in what was quarantined does, makes none.
--
-- KEYS  1 meta  2 unflushed  3 hydrating  4… one state each
-- ARGV  1 fence (on|off)  2 epoch and 3 watermark that Postgres had, or '' before it is asked: then nothing is installed
-- 4 ttl in ms  5 purpose (read|write)  6… the keys of the states
-- Gives { 'FENCED' }, { 'FOREIGN', Redis key, reason }, or { 'OK', epoch, what Postgres has to hold, then per state: PRESENT (somebody
-- brought or made it), DIRTY (not in Redis, not yet in Postgres), BEHIND (what Postgres was read to hold, if it was, may be
-- too old), ABSENT (installed), FULL (it is absent, and Redis has no memory for that, or refuses who reads for its disk or
-- its replicas) }; the error READONLY where this server is no primary.

local function error_of(reply) return type(reply) == 'table' and reply.err end

local head = redis.pcall('HMGET', KEYS[1], 'epoch', 'replid', 'flushed', 'retired')
if head.err then return { 'FOREIGN', KEYS[1], head.err } end
local fence = ARGV[1]
-- include lineage
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
if not head[1] or head[2] ~= server then return { 'FENCED' } end
local flushed = tonumber(head[3] or '0')
-- include held
local reached = head[1] == ARGV[2] and tonumber(ARGV[3]) >= tonumber(least)
local writes, answer = ARGV[5] == 'write', { 'OK', head[1], least }
for i = 4, #KEYS do
  local key, verdict = ARGV[i + 2], 'BEHIND'
-- include loadable
  if kind == 'hash' then
    verdict = 'PRESENT'
  elseif dirty and tonumber(dirty) > flushed then
    verdict = 'DIRTY'
  elseif reached then
    verdict = 'ABSENT'
    local refused = error_of(redis.pcall('HSET', KEYS[i], 'key', key, 'op', 'absent', 'value', '', 'version', '0',
      'epoch', head[1], 'change_id', '', 'parent_change_id', '', 'position', '', 'encoding', '', 'schema', '',
      'updated_at', '', 'writer', '', 'recent', ''))
-- include unwritable
    if refused then
      verdict = 'FULL'
    else
      redis.call('PEXPIRE', KEYS[i], ARGV[4])
      if standing then redis.call('HDEL', KEYS[3], key) end -- of a reader who is slower
    end
  end
  answer[#answer + 1] = verdict
end
return answer
