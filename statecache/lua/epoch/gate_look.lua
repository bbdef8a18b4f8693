-- Tells what a shard's data set says of itself, for whoever wants to open it; with a token, reserves its gate first where
-- all is still as it was looked at. A reservation closes the gate, so what is told with it stays true.
--
-- KEYS  1 meta  2 changes  3 unflushed  4 hydrating
-- ARGV  1 fence (on|off)  and to reserve: 2 token  3 ms that the reservation stands  as looked at: 4 epoch  5 replid
--       6 reservation  7 server's replid  8 a name that is kept with those that it continues, or ''
-- Gives { epoch, replid, continues, reservation, until when it stands, ms that are left of it, last generated id,
--         n, entries and bytes of the newest commit, flushed, excepted, shards, hash, cluster, server's replid, role,
--         the replid that it had before, as a replica };
--         '' for what is missing; or { 'FOREIGN', Redis key, reason }.

for i, kind in ipairs({ 'hash', 'stream', 'zset', 'hash' }) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= kind and found ~= 'none' then return { 'FOREIGN', KEYS[i], 'it is a ' .. found .. ', not a ' .. kind } end
end
local names = { 'epoch', 'replid', 'continues', 'reservation', 'reserved_until', 'n', 'entries', 'bytes', 'flushed',
  'excepted', 'shards', 'hash', 'cluster' }
local values, meta = redis.call('HMGET', KEYS[1], unpack(names)), {}
for i, name in ipairs(names) do meta[name] = values[i] or '' end
local fence = ARGV[1]
-- include lineage
local now = redis.call('TIME')
local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)

-- The replids that this data set may continue are kept, the server's own last.
if ARGV[2] and meta.epoch == ARGV[4] and meta.replid == ARGV[5] and meta.reservation == ARGV[6] and server == ARGV[7] then
  local continues = {}
  for replid in string.gmatch(ARGV[8] .. ' ' .. meta.continues .. ' ' .. meta.replid, '%S+') do
    if replid ~= server then continues[#continues + 1] = replid end
  end
  continues[#continues + 1] = server
  meta.continues = table.concat(continues, ' ')
  meta.replid, meta.reservation, meta.reserved_until = '', ARGV[2], string.format('%.0f', ms + tonumber(ARGV[3]))
  redis.call('HDEL', KEYS[1], 'reserved_until') -- first: a script that has removed something may go on when memory is full
  redis.call('HSET', KEYS[1], 'replid', '', 'continues', meta.continues, 'reservation', meta.reservation,
    'reserved_until', meta.reserved_until)
end

-- A reservation ends with the server that it was made on: nothing of what the opener still sends can take effect.
local left = (tonumber(meta.reserved_until) or 0) - ms
local reserved_on = string.match(meta.continues, '(%S+)$')
if reserved_on and reserved_on ~= server then left = 0 end

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
return { meta.epoch, meta.replid, meta.continues, meta.reservation, meta.reserved_until, string.format('%.0f', left),
  last, meta.n, meta.entries, meta.bytes, meta.flushed, meta.excepted, meta.shards, meta.hash, meta.cluster, server, role,
  string.match(info, 'master_replid2:(%x+)') or '' }
