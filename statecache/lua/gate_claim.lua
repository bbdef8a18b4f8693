-- Claims a shard's gate: closes it and writes the claimer's token. The replids that this data set may continue are kept.
--
-- KEYS  1 meta
-- ARGV  1 token  2 ms that the claim stands  3 epoch as looked at  4 replid as looked at  5 server's replid as looked at
--       6 fence (on|off)  7 claim as looked at
-- Gives 1, or 0 where anything is no longer as it was looked at.

local server = 'off'
if ARGV[6] == 'on' then server = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') end
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'replid', 'claim', 'claimed')
if (meta[1] or '') ~= ARGV[3] or (meta[2] or '') ~= ARGV[4] or server ~= ARGV[5] or (meta[3] or '') ~= ARGV[7] then
  return 0
end
local claimed = meta[4] or ''
for _, replid in ipairs({ ARGV[4], server }) do
  if meta[1] and replid ~= '' and not string.find(claimed, replid, 1, true) then
    claimed = claimed == '' and replid or claimed .. ' ' .. replid
  end
end
local now = redis.call('TIME')
local till = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) + tonumber(ARGV[2])
redis.call('HSET', KEYS[1], 'replid', '', 'claim', ARGV[1], 'claimed', claimed, 'claim_until', string.format('%.0f', till))
return 1
