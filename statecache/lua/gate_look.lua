-- Tells what a shard's data set says of itself, for whoever wants to open it.
--
-- KEYS  1 meta  2 changes
-- ARGV  1 fence (on|off)
-- Gives { epoch, replid, claimed, claim, ms that the claim still stands, last generated id, server's replid, role,
--         n, entries and bytes of the last entry }; '' for what is missing.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'replid', 'claimed', 'claim', 'claim_until')
local now = redis.call('TIME')
local left = 0
if meta[5] then left = tonumber(meta[5]) - (tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)) end
local server, role = 'off', 'master'
if ARGV[1] == 'on' then
  local info = redis.call('INFO', 'replication')
  server, role = string.match(info, 'master_replid:(%x+)'), string.match(info, 'role:(%a+)')
end
local last, n, entries, bytes = '0-0', '', '', ''
if redis.call('EXISTS', KEYS[2]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[2])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
  end
  local entry = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  if entry then
    n = string.match(entry[1], '%-(%d+)')
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'entries' then entries = entry[2][i + 1] end
      if entry[2][i] == 'bytes' then bytes = entry[2][i + 1] end
    end
  end
end
return { meta[1] or '', meta[2] or '', meta[3] or '', meta[4] or '', string.format('%.0f', left), last, server, role,
  n, entries, bytes }
