-- Removes entries that no commit wrote, or not to its end, with the states that it came to write. Their ids may be so
-- high that no commit can be added behind them, and deleting them leaves the stream's last id where it is; so, when the
-- last of them is gone, the stream is written anew, its last id the newest commit's.
--
-- KEYS  1 meta  2 changes  3 unflushed  4… a state each that one of them names
-- ARGV  1 id of the last entry to remove: it goes, and what no commit wrote before it  2… per state: key, change_id
-- Gives { how many entries were removed, how many at least are left that no commit wrote }.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'n', 'flushed')
if not meta[1] or not meta[2] then return { 0, 0 } end
local head, spare = meta[1] .. '-' .. meta[2], KEYS[2] .. '~'
local removed = 0

-- A state goes where it holds such a change. Dirty it is as far as commits have come, for what it held before may be so.
for i = 4, #KEYS do
  local key, change_id = ARGV[2 * i - 6], ARGV[2 * i - 5]
  if redis.pcall('HGET', KEYS[i], 'change_id') == change_id then redis.call('UNLINK', KEYS[i]) end
  local n = tonumber(redis.call('ZSCORE', KEYS[3], key) or '0')
  if n > tonumber(meta[2]) then
    if tonumber(meta[3] or '0') < tonumber(meta[2]) then
      redis.call('ZADD', KEYS[3], meta[2], key)
    else
      redis.call('ZREM', KEYS[3], key)
    end
  end
end
repeat
  local entries = redis.call('XRANGE', KEYS[2], '(' .. head, ARGV[1], 'COUNT', 100)
  for _, entry in ipairs(entries) do removed = removed + redis.call('XDEL', KEYS[2], entry[1]) end
until #entries == 0
if #redis.call('XRANGE', KEYS[2], '(' .. head, '+', 'COUNT', 1) > 0 then return { removed, 1 } end
redis.call('DEL', spare)
local from, last = '-', ''
repeat
  local entries = redis.call('XRANGE', KEYS[2], from, head, 'COUNT', 100)
  for _, entry in ipairs(entries) do
    redis.call('XADD', spare, entry[1], unpack(entry[2]))
    last = entry[1]
    from = '(' .. last
  end
until #entries == 0
if last ~= head then
  redis.call('XADD', spare, head, '_', '_')
  redis.call('XDEL', spare, head)
end
redis.call('RENAME', spare, KEYS[2])
return { removed, 0 }
