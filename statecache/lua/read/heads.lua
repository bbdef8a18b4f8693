-- Tells how far shards are. It is asked before their entries are read, so that the entries are of this epoch or later.
--
-- KEYS  one meta each
-- ARGV  1 fence (on|off)
-- Gives { server's replid, server's time in ms, then per shard: { epoch, replid, n, entries, bytes, flushed, excepted, retired },
-- '' for what is missing, or the reason why its meta cannot be read }; the error READONLY where this server is no primary.

local fence = ARGV[1]
-- include lineage
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
local now = redis.call('TIME')
local answer = { server, string.format('%.0f', tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)) }
for i = 1, #KEYS do
  local meta = redis.pcall('HMGET', KEYS[i], 'epoch', 'replid', 'n', 'entries', 'bytes', 'flushed', 'excepted',
    'retired')
  if meta.err then
    answer[2 + i] = meta.err
  else
    for j = 1, 8 do meta[j] = meta[j] or '' end
    answer[2 + i] = meta
  end
end
return answer
