-- Tells what a shard's data set says of itself, for whoever wants to open it; with a token, claims its gate first where
-- all is still as it was looked at. A claim closes the gate, so what is told with it stays true.
--
-- KEYS  1 meta  2 changes  3 unflushed  4 hydrating
-- ARGV  1 fence (on|off)  and to claim: 2 token  3 ms that the claim stands  as looked at: 4 epoch  5 replid  6 claim
--       7 server's replid
-- Gives { epoch, replid, claimed, claim, until when it stands, ms that are left of it, last generated id,
--         n, entries and bytes of the newest commit, flushed, excepted, shards, hash, cluster, server's replid, role };
--         '' for what is missing; or { 'FOREIGN', Redis key, reason }.

for i, kind in ipairs({ 'hash', 'stream', 'zset', 'hash' }) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= kind and found ~= 'none' then return { 'FOREIGN', KEYS[i], 'it is a ' .. found .. ', not a ' .. kind } end
end
local names = { 'epoch', 'replid', 'claimed', 'claim', 'claim_until', 'n', 'entries', 'bytes', 'flushed', 'excepted',
  'shards', 'hash', 'cluster' }
local values, meta = redis.call('HMGET', KEYS[1], unpack(names)), {}
for i, name in ipairs(names) do meta[name] = values[i] or '' end
local fence = ARGV[1]
-- include lineage
local now = redis.call('TIME')
local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)

-- The replids that this data set may continue are kept, the server's own last.
if ARGV[2] and meta.epoch == ARGV[4] and meta.replid == ARGV[5] and meta.claim == ARGV[6] and server == ARGV[7] then
  local claimed = {}
  for replid in string.gmatch(meta.claimed .. ' ' .. meta.replid, '%S+') do
    if replid ~= server then claimed[#claimed + 1] = replid end
  end
  claimed[#claimed + 1] = server
  meta.claimed = table.concat(claimed, ' ')
  meta.replid, meta.claim, meta.claim_until = '', ARGV[2], string.format('%.0f', ms + tonumber(ARGV[3]))
  redis.call('HDEL', KEYS[1], 'claim_until') -- first: a script that has removed something may go on when memory is full
  redis.call('HSET', KEYS[1], 'replid', '', 'claimed', meta.claimed, 'claim', meta.claim, 'claim_until', meta.claim_until)
end

-- A claim ends with the server that it was made on: nothing of what the claimer still sends can take effect.
local left = (tonumber(meta.claim_until) or 0) - ms
local claimed_on = string.match(meta.claimed, '(%S+)$')
if claimed_on and claimed_on ~= server then left = 0 end

local last = '0-0'
if redis.call('EXISTS', KEYS[2]) == 1 then
  local stream = redis.call('XINFO', 'STREAM', KEYS[2])
  for i = 1, #stream, 2 do
    if stream[i] == 'last-generated-id' then last = stream[i + 1] end
  end
  if not string.match(meta.n, '^%d+$') then
    meta.n = string.match(last, '%-(%d+)$')
    local entry = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
    for i = 1, entry and #entry[2] or 0, 2 do
      if entry[2][i] == 'entries' or entry[2][i] == 'bytes' then meta[entry[2][i]] = entry[2][i + 1] end
    end
  end
end
return { meta.epoch, meta.replid, meta.claimed, meta.claim, meta.claim_until, string.format('%.0f', left), last,
  meta.n, meta.entries, meta.bytes, meta.flushed, meta.excepted, meta.shards, meta.hash, meta.cluster, server, role }
