-- Shows how all shards stand, for people: cheaply, for it may be asked every second beside the commits.
--
-- KEYS  per shard: meta, changes
-- ARGV  1 fence (on|off)  2 bytes of entries to read at most, as far as averages tell  3 entries to read of a shard at most
--       per shard: entries and bytes as of the last look ('' = there was none: no keys are given)
-- Gives { server's replid, server's time in ms, then per shard: { epoch, replid, n, entries, bytes, flushed,
-- flushed entries, flushed bytes, time of the oldest unflushed entry, keys that were written since the last look… },
-- '' for what is missing or was not read, or the reason why its meta cannot be read }.

local fence = ARGV[1]
-- include lineage
local now = redis.call('TIME')
local answer = { server, string.format('%.0f', tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)) }
local left, most = tonumber(ARGV[2]), tonumber(ARGV[3])

local function oldest_of(changes, meta)
  local behind, bytes = tonumber(meta[4]) - tonumber(meta[7]), tonumber(meta[5]) - tonumber(meta[8])
  if behind <= 0 or bytes / behind > left then return '' end
  left = left - bytes / behind
  local from = meta[1] .. '-' .. string.format('%.0f', tonumber(meta[6]) + 1)
  local read = redis.pcall('XRANGE', changes, from, '+', 'COUNT', 1)
  local entry = not read.err and read[1]
  for i = 1, entry and #entry[2] or 0, 2 do
    if entry[2][i] == 'at' then return entry[2][i + 1] end
  end
  return ''
end

local function add_keys(shard, changes, meta, entries, bytes)
  local fresh, size = tonumber(meta[4]) - entries, tonumber(meta[5]) - bytes
  if fresh <= 0 or size < 0 then return end
  local average = math.max(1, size / fresh)
  local count = math.min(fresh, most, math.floor(left / average))
  if count < 1 then return end
  left = left - count * average
  local read = redis.pcall('XREVRANGE', changes, '+', '-', 'COUNT', count)
  if read.err then return end
  for _, entry in ipairs(read) do
    local fields = entry[2]
    for at = 1, #fields, 2 do
      if string.match(fields[at], '^key%d+$') then shard[#shard + 1] = fields[at + 1] end
    end
  end
end

for i = 1, #KEYS, 2 do
  local meta = redis.pcall('HMGET', KEYS[i], 'epoch', 'replid', 'n', 'entries', 'bytes', 'flushed', 'flushed_entries',
    'flushed_bytes')
  if meta.err then
    answer[#answer + 1] = meta.err
  else
    local whole = true
    for j = 1, 8 do
      meta[j] = meta[j] or ''
      whole = whole and (j == 2 or tonumber(meta[j]))
    end
    local shard = meta
    shard[9] = whole and oldest_of(KEYS[i + 1], meta) or ''
    local seen, bytes = tonumber(ARGV[3 + i]), tonumber(ARGV[4 + i])
    if whole and seen and bytes then add_keys(shard, KEYS[i + 1], meta, seen, bytes) end
    answer[#answer + 1] = shard
  end
end
return answer
