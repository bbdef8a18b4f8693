#!lua flags=allow-oom
-- Takes, waits for, renews, gives back or breaks the lock of a key. It may run when memory is full: a holder must be
-- able to keep its lease and to give it back, and what waits is bounded.
--
-- KEYS  1 meta  2 leases  3 waiters  4 events (a channel; a client's own has its name behind it)
-- ARGV  1 fence (on|off), and behind a blank the newest epoch of the shard that the sender knows  2 take (now, or not at all) | queue (now, or in turn) | renew | release (the lease, or the
--       place in the queue) | withdraw (the same, and for good: attempts that are still on their way are late)
--       | break  3 key  4 request: what names its sender, `<client>:<one of its requests>`  5 token, for renew and
--       break  6 holder: what a person reads  7 ttl in ms; of a withdrawal, how long it stands  8 the server's time in
--       ms past which this attempt must not be executed  9 limits: ms that a place in the queue stands, ms that who is
--       called has for coming, how many may wait
-- Gives { verdict, … }; of most OKs both parts as one text with a space between them, for a list costs the server more:
--   OK        token
--   WAIT      ms that the lease in the way has left, its holder, place in the queue
--   HELD      the same, and there is no place
--   FULL      how many wait
--   GONE      token and holder of whoever has it, or nothing: it is not the sender's
--   FENCED    this server is not the one that opened the shard's epoch; or `behind`: the sender knows a later one
--   LATE      this attempt was held up on its way, and whoever sent it has given it up, or was withdrawn
--   FOREIGN   Redis key, reason
-- A repeat of the same request answers as the first did. A lease whose deadline has passed is nobody's. Whenever this
-- leaves a lock free that somebody waits for, the first who still stands in the queue has it: for as long as it takes
-- to come, and called on its client's channel; the client behind hears that too, and asks when that time is over. Neither
-- of the keys has a time to live: an eviction would be a second holder.

local KEYS, ARGV, call, pcall, format, match = KEYS, ARGV, redis.call, redis.pcall, string.format, string.match
local meta, leases, waiters, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local verb, key, request = ARGV[2], ARGV[3], ARGV[4]

local lease = pcall('HGET', leases, key)
if type(lease) == 'table' then return { 'FOREIGN', leases, lease.err } end
local waiting = pcall('HMGET', waiters, key, '!' .. request)
if waiting.err then return { 'FOREIGN', waiters, waiting.err } end
local time = call('TIME')
local now = time[1] * 1000 + time[2] / 1000

-- Most give back what nobody waits for: the fence has no say in that.
if verb == 'release' and not waiting[1] then
  local token, until_ms, owner = match(lease or '', '^token=(%S+) until=(%d+) ttl=%d+ since=%d+ request=(%S+) ')
  if owner == request then
    if now > tonumber(ARGV[8]) then return { 'LATE' } end
    call('HDEL', leases, key)
    return tonumber(until_ms) > now and 'OK ' .. token or { 'GONE' }
  end
end

local head = pcall('HMGET', meta, 'epoch', 'replid')
if head.err then return { 'FOREIGN', meta, head.err } end
local epoch, fence, known = head[1], ARGV[1], nil
if #fence > 3 then fence, known = match(fence, '^(%a+) (%d+)$') end
-- include lineage
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
if not epoch or head[2] ~= server or (known and epoch ~= known and (tonumber(epoch) or 0) < tonumber(known)) then
  return { 'FENCED', head[2] == server and 'behind' or '' }
end
local entering = verb == 'take' or verb == 'queue'
if entering and redis.acl_check_cmd and not redis.acl_check_cmd('SPUBLISH', events .. ':', '') then
  return { 'FOREIGN', events .. ':*', "this user can't run this command: SPUBLISH" } -- who gives a lock back must call the next
end
if now > tonumber(ARGV[8]) or entering and waiting[2] then return { 'LATE' } end
local ttl = tonumber(ARGV[7])

-- Most take what nobody holds and nobody waits for.
if entering and not lease and not waiting[1] then
  local token = epoch .. '-' .. call('HINCRBY', meta, 'tokens', 1)
  call('HSET', leases, key, format('token=%s until=%d ttl=%s since=%d request=%s holder=%s', token, now + ttl, ARGV[7],
    now, request, ARGV[6]))
  return 'OK ' .. token
end

local token, until_ms, asked, owner, holder -- of the lease that stands
if lease then
  token, until_ms, asked, owner, holder =
    match(lease, '^token=(%S+) until=(%d+) ttl=(%d+) since=%d+ request=(%S+) holder=(.*)$')
  if not token then return { 'FOREIGN', leases, 'its field ' .. key .. ' is not a lease' } end
  until_ms, asked = tonumber(until_ms), tonumber(asked)
  if until_ms > now + asked then -- no lease has more left than its whole ttl: the clock was set back
    until_ms = now + asked
    lease = string.gsub(lease, 'until=%d+', format('until=%d', until_ms), 1)
    call('HSET', leases, key, lease)
  end
end
local stands, comes, waiters_max = match(ARGV[9], '(%d+) (%d+) (%d+)')
local stored = waiting[1] or ''
local queue = stored

local function give(to, whose, for_ms, whole_ms)
  token, until_ms, owner, holder = epoch .. '-' .. call('HINCRBY', meta, 'tokens', 1), now + for_ms, to, whose
  lease = format('token=%s until=%d ttl=%d since=%d request=%s holder=%s', token, until_ms, whole_ms, now,
    to, whose)
  call('HSET', leases, key, lease)
end

local function prolong()
  until_ms = now + ttl
  call('HSET', leases, key, (string.gsub(lease, 'until=%d+ ttl=%d+', format('until=%d ttl=%d',
    until_ms, ttl), 1)))
end

-- Where the client that sent a request is called.
local function channel_of(sent)
  local client = match(sent, '^(%w+):')
  return client and events .. ':' .. client or events
end

-- Whose line it is: its first and last character in the queue, or nothing.
local function line_of(one)
  local from = string.find('\n' .. queue, '\n' .. one .. ' ', 1, true)
  if from then return from, string.find(queue, '\n', from, true) end
end

local function leave(one)
  local from, to = line_of(one)
  if from then queue = string.sub(queue, 1, from - 1) .. string.sub(queue, to + 1) end
end

local answer
local mine = lease and owner == request
if entering and mine then
  prolong()
  leave(request)
  answer = { 'OK', token }
elseif entering then
  local place = format('%s until=%d ttl=%d since=', request, now + tonumber(stands), ttl)
  local from, to = line_of(request)
  if verb == 'take' then
    leave(request)
  elseif from then
    local since = match(string.sub(queue, from, to), 'since=(%d+)')
    queue = string.sub(queue, 1, from - 1) .. place .. since .. ' holder=' .. ARGV[6] .. string.sub(queue, to)
  elseif queue ~= '' or (lease and until_ms > now) then
    local _, count = string.gsub(queue, '\n', '')
    if count >= tonumber(waiters_max) then return { 'FULL', tostring(count) } end
    queue = queue .. place .. format('%d', now) .. ' holder=' .. ARGV[6] .. '\n'
  end
elseif verb == 'renew' then
  if mine and token == ARGV[5] and until_ms > now then
    prolong()
    answer = { 'OK', token }
  end
else
  leave(request)
  if verb == 'withdraw' then call('HSET', waiters, '!' .. request, format('%d', now + ttl)) end
  if lease and (mine or verb == 'break' and (ARGV[5] == '' or ARGV[5] == token)) then
    call('HDEL', leases, key)
    answer = until_ms > now and { 'OK', token }
    lease = false
  end
end

-- The next one: whoever takes the lock now where nobody waits, else the first in the queue that still stands there.
if not lease or until_ms <= now then
  while queue ~= '' and (not lease or until_ms <= now) do
    local first, ends, whole, whose = match(queue, '^(%S+) until=(%d+) ttl=(%d+) since=%d+ holder=([^\n]*)\n')
    queue = match(queue, '^[^\n]*\n(.*)$') or ''
    if first == request and entering then
      give(request, ARGV[6], ttl, ttl)
    elseif first and tonumber(ends) > now then
      local coming = math.min(tonumber(comes), tonumber(whole))
      give(first, whose, coming, tonumber(whole))
      local message, to = format('lock %s %d %s', first, coming, key), channel_of(first)
      call('SPUBLISH', to, message)
      for behind, stands_until in string.gmatch(queue, '(%S+) until=(%d+) [^\n]*\n') do
        if tonumber(stands_until) > now and channel_of(behind) ~= to then
          call('SPUBLISH', channel_of(behind), message)
          break
        end
      end
    end
  end
  if entering and queue == '' and (not lease or until_ms <= now) then give(request, ARGV[6], ttl, ttl) end
  if entering and owner == request then answer = { 'OK', token } end
end
if queue ~= stored then
  if queue == '' then call('HDEL', waiters, key) else call('HSET', waiters, key, queue) end
end
if answer then return answer end
if not entering then return lease and { 'GONE', token, holder } or { 'GONE' } end
local _, before = string.gsub(string.sub(queue, 1, line_of(request) or 0), '\n', '')
return { verb == 'take' and 'HELD' or 'WAIT', format('%d', math.ceil(until_ms - now)), holder, tostring(before + 1) }
