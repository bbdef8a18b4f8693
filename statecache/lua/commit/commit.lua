-- Commits 1 to 256 states of one group: the only write path of states.
--
-- KEYS  1 meta  2 changes  3 unflushed  4 hydrating  5… one state each  last, where locks count: leases
-- ARGV  1 nonce: sender.number  2 change_id  3 fence (on|off); behind blanks: how many replicas must be connected, the
--       newest epoch that is known  4 repeat (0|1, or where its writer was told that it is)  5 writer  6 actor  7 reason
--       8 backlog entries max  9 backlog bytes max  10 commit bytes max  11 value bytes max
--       12… per state: key, op (set|delete|check, or a modifier: verb, digest, most bytes, and keep where an end stays),
--           expected (change_id, or that and ~ where its end may have come, * blind, ! absent, ? present, % ended),
--           value, encoding (behind it ' in ' and ms: it ends then, or ' until ' and a time in ms), schema, ttl in ms
--           ('' = default), assume_new (0|1|e<epoch>: in that epoch|w<epoch>-<watermark>: Postgres, then, held nothing)
--       last, optional: the server's time in ms past which this attempt must not be executed, and where it is not
--           the first one: past which no other can be executed either; behind a blank, where others were never
--           answered, the greatest of their times
--       where locks count, both of them, the second '' for none, then: the lock and token of each lease that the
--           commit is made under, and the keys whose locks nobody else may hold; NULs between and after them
-- Gives { nonce, verdict, … }; of OK without modifiers these as one text with spaces, for a list costs the server more:
--   OK | DUP    position, updated_at, then per state: version, parent; then per modifier: encoding, schema, value
--   MUTE        the same as DUP, but there was no memory to write: a WAIT behind it vouches for nothing
--   LATE        this attempt was held up on its way, and whoever sent it has given it up
--   FENCED      meta.replid, server's replid, meta.epoch, and `behind` where its epoch is older than the writer knows
--   MISSING     index of each state that is not in Redis
--   UNSURE      this repeat may have been applied long ago: look it up; with a position it was, and that is all it knows
--   REUSED      index of a state at which the change_id is another change's, applied at that version
--   CONFLICT    index, its change_id, its op, or `expired` where its end has come; and FINAL (see `refused`)
--   STALE       the lock whose lease is not the commit's any more, its token, and the holder now, or ''
--   HELD        the lock that somebody else holds, and the holder
--   POLICY      enforced: the namespace's locks are, and the commit does not name those in its way; advisory: it does,
--               and they are not
--   BACKLOG     entries, bytes
--   REPLICAS    how many are connected, how many must be
--   LIMIT       index (0 = the whole commit), bytes, limit
--   UNFIT       index of a state that cannot be modified, why (see `modifiers`; encoding, quarantined), which or its beginning
--   FOREIGN     Redis key, reason
-- Nothing after the first write can fail: types, sizes, limits and rights are checked before it, and XADD comes first.
-- Every commit waits for this script, and what it leaves to the garbage collector too: so globals are locals, there is
-- no table or closure that most commits do without, and the work of rare cases is done in those only.

local KEYS, ARGV, call, pcall, find, format = KEYS, ARGV, redis.call, redis.pcall, string.find, string.format
local meta, changes, unflushed, hydrating = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce, change_id = ARGV[1], ARGV[2]
local is_repeat, writer, actor, reason = ARGV[4] ~= '0', ARGV[5], ARGV[6], ARGV[7]
local first, width = 12, 8 -- of the states, whose keys stand first, and then:
local OP, EXPECTED, VALUE, ENCODING, SCHEMA, TTL, ASSUME_NEW = 1, 2, 3, 4, 5, 6, 7
local count = #KEYS - 4
local locks = #ARGV < first - 1 + width * count -- as many as for one state less: the last KEY is no state
if locks then
  count, locks = count - 1, KEYS[4 + count]
end
local last = first + count * width
local latest, others_until, leases, guarded = ARGV[last], ARGV[last + 1], ARGV[last + 2], ARGV[last + 3]
local unanswered = others_until and string.match(others_until, ' (%d+)$')
if unanswered then others_until = string.match(others_until, '^%d+') end

-- Fence: this server is the one that opened the shard's epoch, and a primary: what a replica refuses may be long past.
local head = pcall('HMGET', meta, 'epoch', 'replid', 'n', 'entries', 'bytes', 'flushed_entries', 'flushed_bytes',
  'enforced', 'refused')
if head.err then return { nonce, 'FOREIGN', meta, head.err } end
local epoch, replid, fence, replicas, known = head[1], head[2], ARGV[3], '0', nil
if #fence > 3 then fence, replicas, known = string.match(fence, '^(%a+) (%d+) (%d+)$') end
-- include lineage
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
if not epoch or replid ~= server or (known and epoch ~= known and (tonumber(epoch) or 0) < tonumber(known)) then
  return { nonce, 'FENCED', replid or '', server, epoch or '', replid == server and 'behind' or '' }
end

-- Presence: every state is here, or its creator vouches that it is new, or it is proven to be. Not for a repeat: Redis
-- may have forgotten what was applied, and Postgres may hold it.
local states, missing = {}, nil
local mine, seen = change_id .. '@', is_repeat
for i = 1, count do
  local state = pcall('HMGET', KEYS[4 + i], 'version', 'change_id', 'op', 'recent', 'key', 'ttl', 'encoding')
  if state.err then return { nonce, 'FOREIGN', KEYS[4 + i], state.err } end
  local at = first + (i - 1) * width
  if not state[1] then
    if call('EXISTS', KEYS[4 + i]) == 1 then return { nonce, 'FOREIGN', KEYS[4 + i], 'fields are missing' } end
-- include novelty
    if new and not is_repeat then
      state = { '0', '', 'absent', '', ARGV[at] }
    else
      missing = missing or { nonce, 'MISSING' }
      missing[#missing + 1] = i
    end
  elseif not (state[2] and state[3] and state[4]) or state[5] ~= ARGV[at] or find(state[2], ' ', 1, true) then
    return { nonce, 'FOREIGN', KEYS[4 + i], 'fields are missing, name another key, or hold no change_id' }
  end
  states[i] = state
  seen = seen or find(state[4] or '', mine, 1, true)
end
if missing then return missing end

-- Dedupe: a change that is in `recent` was applied; it answers as the first time did, and still writes.
-- A repeat that `recent` no longer reaches is unsure, unless a parent that it names is still the tip. So is one that was
-- applied as its writer knows, and one of a state that was loaded and has changes that are lost.
-- A first attempt whose change_id is in no `recent` is neither.
if seen then
-- include ends_alike
  local writes, found_in, unsure, unapplied, forgotten = 0, 0, false, false, false
  local dup, reused, remade = { nonce, 'DUP', '', '' }, nil, nil
  for i = 1, count do
    local at, state = first + (i - 1) * width, states[i]
    if ARGV[at + OP] ~= 'check' then
      writes = writes + 1
      local age, found, parent = 0, nil, nil
      for id, position in string.gmatch(state[4], '(%S+)@(%S*)') do
        if found then
          parent = id
          break
        end
        if id == change_id then found = { position, age } else age = age + 1 end
      end
      local version = tonumber(state[1])
      if found and not parent and version - found[2] == 1 then parent = '' end
      if parent then
        found_in = found_in + 1
        dup[3] = found[1]
        local op, value, encoding, schema
        if found[2] == 0 then
          local held = call('HMGET', KEYS[4 + i], 'updated_at', 'op', 'value', 'encoding', 'schema')
          dup[4], op, value, encoding, schema = held[1], held[2], held[3], held[4], held[5]
        else
          local entry = call('XRANGE', changes, found[1], found[1])[1]
          local fields = entry and entry[2] or {}
          dup[4] = fields[6] or ''
          for j = 13, #fields, 2 do
            if fields[j + 1] == ARGV[at] and find(fields[j], '^key%d+$') then
              op, encoding, schema, value = fields[j + 3], fields[j + 9], fields[j + 11], fields[j + 13]
            end
          end
        end
        local other = op == 'set' and not ends_alike(ARGV[at + ENCODING], encoding, dup[4])
        if #ARGV[at + OP] > 6 then -- a modifier, of which its digest tells whether it is this one
          local asked, own = string.match(' ' .. (call('HGET', KEYS[4 + i], 'asked') or ''), ' ' .. mine .. '(%x+)(~?)')
          local digest, ends = string.match(ARGV[at + OP], ' (%x+) %d+ (%a+)$') -- ~: it asked for an end of its own
          other = asked and (asked ~= digest or (ends == 'end' and other) or (ends == 'keep' and own == '~'))
          forgotten = forgotten or not asked
          remade = remade or {}
          remade[#remade + 1], remade[#remade + 2], remade[#remade + 3] = encoding or '', schema or '', value or ''
        else
          other = op and (other or op ~= ARGV[at + OP] or value ~= ARGV[at + VALUE])
        end
        if other then
          reused = reused or { nonce, 'REUSED', i, format('%d', version - found[2]) }
        end
        dup[#dup + 1] = format('%d', version - found[2])
        dup[#dup + 1] = parent
      elseif found then -- it was applied, and what the answer was is forgotten
        found_in, dup[3], forgotten = found_in + 1, found[1], true
      elseif is_repeat and (version > age or call('HEXISTS', KEYS[4 + i], 'lost') == 1) then
        unsure = true
      end
      local expected = ARGV[at + EXPECTED]
      unapplied = unapplied or (not found and expected ~= '' and (expected == state[2] or expected == state[2] .. '~'))
    end
  end
  if reused then return reused end
  if writes > 0 and found_in == writes and dup[4] ~= '' and not forgotten then
    for i = 1, remade and #remade or 0 do dup[#dup + 1] = remade[i] end
    if type(pcall('HINCRBY', meta, 'repeats', 1)) == 'table' then dup[2] = 'MUTE' end
    return dup
  end
  if found_in > 0 then return { nonce, 'UNSURE', dup[3] } end
  if (unsure and not unapplied) or #ARGV[4] > 1 then return { nonce, 'UNSURE' } end
end

-- Backlog: Postgres may fall behind only so far.
local behind, behind_bytes = head[4] - head[6], head[5] - head[7]
if behind >= tonumber(ARGV[8]) or behind_bytes >= tonumber(ARGV[9]) then
  return { nonce, 'BACKLOG', format('%d', behind), format('%d', behind_bytes) }
end

-- Replicas: what too few can acknowledge is not written.
if replicas ~= '0' then
  if fence ~= 'on' then info = call('INFO', 'replication') end
  local connected = string.match(info, 'connected_slaves:(%d+)') or '0'
  if tonumber(connected) < tonumber(replicas) then return { nonce, 'REPLICAS', connected, replicas } end
end

-- Compare-and-set on the parent change. A state whose end has come counts as deleted.
local now
for i = 1, count do
  local expected, state = ARGV[first + (i - 1) * width + EXPECTED], states[i]
  if state[7] and #state[7] > 7 and state[3] == 'set' then
    local ends = string.match(state[7], ' until (%d+)$')
    now = now or call('TIME')
    if ends and now[1] * 1000 + now[2] / 1000 >= tonumber(ends) then state[3] = 'expired' end
  end
  local holds
  if expected == '*' then
    holds = true
  elseif expected == '!' then
    holds = state[3] ~= 'set'
  elseif expected == '?' then
    holds = state[3] == 'set'
  elseif expected == '%' then
    holds = state[3] == 'expired'
  else
    holds = expected == state[2] and state[3] ~= 'expired' or expected == state[2] .. '~'
  end
  if not holds then
    local conflict = { nonce, 'CONFLICT', i, state[2], state[3] }
-- include refused
    return conflict
  end
end

-- Policy: which locks may be in the way is asked where their namespace enforces them, and only there.
if head[8] or locks then
  local namespace = string.match(ARGV[first], '^[^/]*')
  local enforced = head[8] and find(head[8], ' ' .. namespace .. ' ', 1, true)
  local names_locks = locks and guarded ~= ''
  if enforced and not names_locks then return { nonce, 'POLICY', 'enforced' } end
  if names_locks and not enforced then return { nonce, 'POLICY', 'advisory' } end
end

-- Fencing: each lease of the commit stands, and nobody else holds what only a holder may write.
local tokens
if locks then
  local time, own = call('TIME'), {}
  local ms = time[1] * 1000 + time[2] / 1000
  local function standing(lock)
    local lease = pcall('HGET', locks, lock)
    if type(lease) == 'table' then return nil, nil, lease.err end
    local token, until_ms, holder =
      string.match(lease or '', '^token=(%S+) until=(%d+) ttl=%d+ since=%d+ request=%S+ holder=(.*)$')
    if token and tonumber(until_ms) > ms then return token, holder end
  end
  tokens = {}
  for lock, token in string.gmatch(leases, '(%Z+)%z(%Z+)%z') do
    local stands, holder, foreign = standing(lock)
    if foreign then return { nonce, 'FOREIGN', locks, foreign } end
    if stands ~= token then return { nonce, 'STALE', lock, token, holder or '' } end
    own[lock], tokens[#tokens + 1], tokens[#tokens + 2] = true, lock, token
  end
  for lock in string.gmatch(guarded, '(%Z+)%z') do
    local stands, holder, foreign = standing(lock)
    if foreign then return { nonce, 'FOREIGN', locks, foreign } end
    if stands and not own[lock] then return { nonce, 'HELD', lock, holder } end
  end
  if #tokens == 0 then tokens = nil end
end

-- Types and sizes. A modifier becomes the set of what it makes.
local size, modifiers = 0, nil
for i = 1, count do
  local at = first + (i - 1) * width
  if #ARGV[at + OP] > 6 then
-- include modifiers
    local modifier, digest, most, ends = string.match(ARGV[at + OP], '^(%a+) (%x+) (%d+) (%a+)$')
    local state, stands = states[i], states[i][3] == 'set'
    local held = call('HMGET', KEYS[4 + i], 'value', 'schema', 'asked')
    local form = stands and string.match(state[7] or '', '^[^ ]*')
    if form and not (held[1] and held[2]) then return { nonce, 'FOREIGN', KEYS[4 + i], 'fields are missing' } end
    if form and form ~= 'json' then return { nonce, 'UNFIT', i, 'encoding', form } end
    if state[3] == 'quarantined' then return { nonce, 'UNFIT', i, state[3], state[2] } end
    local value, why, begins = modified(modifier, ARGV[at + VALUE], stands and held[1])
    if not value then return { nonce, 'UNFIT', i, why, begins } end
    if #value > tonumber(most) then return { nonce, 'LIMIT', i, #value, most } end
    if stands and ends == 'keep' then ARGV[at + ENCODING] = state[7] end
    if stands and held[2] ~= ARGV[at + SCHEMA] then ARGV[at + SCHEMA] = '' end -- it holds what both of them wrote
    ARGV[at + OP], ARGV[at + VALUE], modifiers = 'set', value, { nonce, 'OK', '', '' }
    local asked = string.match(held[3] or '', '^%S+ %S+ %S+ %S+ %S+') or held[3] or ''
    state.asked = mine .. digest .. (ends == 'keep' and ' ' or '~ ') .. asked
  end
  local length = #ARGV[at + VALUE]
  if length > tonumber(ARGV[11]) then return { nonce, 'LIMIT', i, length, ARGV[11] } end
  if ARGV[at + OP] ~= 'check' then size = size + length + #ARGV[at] + 200 end
end
if size > tonumber(ARGV[10]) then return { nonce, 'LIMIT', 0, size, ARGV[10] } end
local dirty = pcall('ZCARD', unflushed)
if type(dirty) == 'table' then return { nonce, 'FOREIGN', unflushed, dirty.err } end
local hydrations = pcall('HLEN', hydrating)
if type(hydrations) == 'table' then return { nonce, 'FOREIGN', hydrating, hydrations.err } end
-- A first attempt that comes after another one was applied, so late that `recent` may have forgotten that.
if hydrations > 1 and not is_repeat and call('HEXISTS', hydrating, '!' .. change_id) == 1 then
  return { nonce, 'LATE' }
end
-- include given_up

-- Rights: a user may have lost one since the handshake, and what comes behind XADD must not be refused.
local may, lacking = redis.acl_check_cmd, nil
if may then
  if not may('HSET', meta, 'n', 1) then lacking = { 'HSET', meta } end
  if not may('ZADD', unflushed, 1, '_') then lacking = { 'ZADD', unflushed } end
  if hydrations > 1 and not may('HDEL', hydrating, '_') then lacking = { 'HDEL', hydrating } end
  if others_until and not may('HSET', hydrating, '_', '_') then lacking = { 'HSET', hydrating } end
  for i = 1, count do
    if not may('HSET', KEYS[4 + i], 'n', 1) then lacking = { 'HSET', KEYS[4 + i] } end
    if not may('PERSIST', KEYS[4 + i]) then lacking = { 'PERSIST', KEYS[4 + i] } end
  end
  if lacking then
    return { nonce, 'FOREIGN', lacking[2], 'NOPERM ' .. lacking[1] .. ' is no longer allowed on ' .. lacking[2] }
  end
end

-- Nothing below can fail but XADD, which comes first.
now = now or call('TIME')
if latest and now[1] * 1000 + now[2] / 1000 > tonumber(latest) then return { nonce, 'LATE' } end
-- include updated_at

for i = 1, count do -- what ends some time after its commit, ends at a moment
  local at = first + (i - 1) * width + ENCODING
  if #ARGV[at] > 7 then
    local form, ms = string.match(ARGV[at], '^(%a+) in (%d+)$')
    if form then ARGV[at] = format('%s until %.0f', form, now[1] * 1000 + (now[2] - now[2] % 1000) / 1000 + ms) end
  end
end

local n, entries, bytes = format('%d', head[3] + 1), format('%d', head[4] + 1), format('%d', head[5] + size)
local position = epoch .. '-' .. n
local added, written = nil, 0 -- where it is left at 0, one
if count == 1 and actor == '' and reason == '' and ARGV[first + OP] ~= 'check' and not tokens then
  -- The same entry as below, spelled out: most commits are of one state and without what is optional.
  local state = states[1]
  state.version = format('%d', state[1] + 1)
  added = pcall('XADD', changes, position, 'format', '1', 'change_id', change_id, 'at', updated_at, 'writer', writer,
    'entries', entries, 'bytes', bytes, 'key1', ARGV[first], 'op1', ARGV[first + OP], 'version1',
    state.version, 'parent1', state[2], 'encoding1', ARGV[first + ENCODING], 'schema1', ARGV[first + SCHEMA],
    'value1', ARGV[first + VALUE])
else
  local entry = { 'XADD', changes, position, 'format', tokens and '2' or '1', 'change_id', change_id, 'at', updated_at,
    'writer', writer, 'entries', entries, 'bytes', bytes }
  local length = #entry
  if actor ~= '' then entry[length + 1], entry[length + 2], length = 'actor', actor, length + 2 end
  if reason ~= '' then
    entry[length + 1], entry[length + 2], length = 'reason', reason, length + 2
  end
  for i = 1, tokens and #tokens or 0, 2 do
    local which = format('%d', (i + 1) / 2)
    entry[length + 1], entry[length + 2] = 'lock' .. which, tokens[i]
    entry[length + 3], entry[length + 4], length = 'token' .. which, tokens[i + 1], length + 4
  end
  for i = 1, count do
    local at, state = first + (i - 1) * width, states[i]
    if ARGV[at + OP] ~= 'check' then
      written = written + 1
      state.version = format('%d', state[1] + 1)
      entry[length + 1], entry[length + 2] = 'key' .. written, ARGV[at]
      entry[length + 3], entry[length + 4] = 'op' .. written, ARGV[at + OP]
      entry[length + 5], entry[length + 6] = 'version' .. written, state.version
      entry[length + 7], entry[length + 8] = 'parent' .. written, state[2]
      entry[length + 9], entry[length + 10] = 'encoding' .. written, ARGV[at + ENCODING]
      entry[length + 11], entry[length + 12] = 'schema' .. written, ARGV[at + SCHEMA]
      entry[length + 13], entry[length + 14] = 'value' .. written, ARGV[at + VALUE]
      length = length + 14
    end
  end
  added = pcall(unpack(entry))
end
if type(added) == 'table' and added.err then
  local foreign = find(added.err, 'WRONGTYPE') or find(added.err, 'XADD') or find(added.err, 'last possible ID')
  return foreign and { nonce, 'FOREIGN', changes, added.err } or added
end

-- Should the entry be lost, each state tells how many the commit wrote, and who did why, with the length of who (`parts`).
-- A command costs more than what it writes, so each of them is written by one, and all are noted by one as dirty.
local parts = (written > 1 or actor .. reason ~= '') and position .. ' ' .. written
local dirtied = parts and { 'ZADD', unflushed }
if actor .. reason ~= '' then parts = parts .. ' ' .. #actor .. ' ' .. actor .. reason end
local answer = nonce .. ' OK ' .. position .. ' ' .. updated_at
for i = 1, count do
  local at, state = first + (i - 1) * width, states[i]
  if ARGV[at + OP] ~= 'check' then
    local redis_key, before = KEYS[4 + i], string.match(state[4], '^%S+ %S+ %S+ %S+ %S+') or state[4]
    local recent = mine .. position .. (before ~= '' and ' ' .. before or '')
    if parts then
      call('HSET', redis_key, 'key', ARGV[at], 'op', ARGV[at + OP], 'value', ARGV[at + VALUE], 'version', state.version,
        'epoch', epoch, 'change_id', change_id, 'parent_change_id', state[2], 'position', position, 'encoding',
        ARGV[at + ENCODING], 'schema', ARGV[at + SCHEMA], 'updated_at', updated_at, 'writer', writer, 'recent', recent,
        'parts', parts)
      dirtied[#dirtied + 1], dirtied[#dirtied + 2] = n, ARGV[at]
    else
      if state[3] ~= ARGV[at + OP] then call('HSET', redis_key, 'key', ARGV[at], 'op', ARGV[at + OP]) end
      call('HSET', redis_key, 'value', ARGV[at + VALUE], 'version', state.version, 'epoch', epoch, 'change_id', change_id,
        'parent_change_id', state[2], 'position', position, 'encoding', ARGV[at + ENCODING], 'schema', ARGV[at + SCHEMA],
        'updated_at', updated_at, 'writer', writer, 'recent', recent)
      call('ZADD', unflushed, n, ARGV[at])
    end
    if (state[6] or '') ~= ARGV[at + TTL] then call('HSET', redis_key, 'ttl', ARGV[at + TTL]) end
    if state.asked then call('HSET', redis_key, 'asked', state.asked) end
    call('PERSIST', redis_key)
    if hydrations > 1 then call('HDEL', hydrating, ARGV[at]) end
    answer = answer .. ' ' .. state.version .. ' ' .. state[2]
    if modifiers then modifiers[#modifiers + 1], modifiers[#modifiers + 2] = state.version, state[2] end
  end
end
if dirtied then call(unpack(dirtied)) end
call('HSET', meta, 'n', n, 'entries', entries, 'bytes', bytes)
if head[9] and head[9] ~= '' and now[1] * 1000 > tonumber(string.match(head[9], '^%d+') or '0') then call('HSET', meta, 'refused', '') end
if others_until and others_until ~= '' then -- it is swept away as a token is
  call('HSET', hydrating, '!' .. change_id, '!|' .. epoch .. '|' .. others_until)
end
for i = 1, modifiers and count or 0 do
  local at = first + (i - 1) * width
  modifiers[3], modifiers[4] = position, updated_at
  if states[i].asked then
    modifiers[#modifiers + 1], modifiers[#modifiers + 2], modifiers[#modifiers + 3] =
      ARGV[at + ENCODING], ARGV[at + SCHEMA], ARGV[at + VALUE]
  end
end
return modifiers or answer
