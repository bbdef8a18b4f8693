-- Tells how far shards are. It is asked before their entries are read, so that the entries are of this epoch or later.
--
-- KEYS  one meta each
-- ARGV  1 fence (on|off)  2 the cluster that is asked, '' or none where it is not known
-- Gives { server's replid, server's time in ms, then per shard: { epoch, replid, n, entries, bytes, flushed, excepted, retired },
-- '' for what is missing, or the reason why its meta cannot be read, or is not this deployment's }; the error READONLY where
-- this server is no primary.

local fence, cluster = ARGV[1], ARGV[2] or ''
-- include lineage
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
local now = redis.call('TIME')
local answer = { server, string.format('%.0f', tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)) }
for i = 1, #KEYS do
  local meta = redis.pcall('HMGET', KEYS[i], 'epoch', 'replid', 'n', 'entries', 'bytes', 'flushed', 'excepted',
    'retired', 'cluster')
  if meta.err then
    answer[2 + i] = meta.err
  elseif cluster ~= '' and (meta[9] or cluster) ~= cluster then
    answer[2 + i] = 'it is of another deployment, of cluster ' .. meta[9] .. '; this one is cluster ' .. cluster
  else
    for j = 1, 8 do meta[j] = meta[j] or '' end
    meta[9] = nil
    answer[2 + i] = meta
  end
end
return answer
