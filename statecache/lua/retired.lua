-- Tells which entries may leave a shard's stream: flushed, and past the retention by their own time or by size.
--
-- KEYS  1 meta  2 changes  3 unflushed
-- ARGV  1 epoch  2 flushed n as Postgres says  3 time up to which entries leave  4 bytes to keep behind the watermark
--       5 states to name at most  6 bytes to read at most
-- What a worker that no longer owns the shard has called dirty, although it is flushed, is clean again.
-- Gives { 1 where there may be more, else 0, then per entry, oldest first: { id, change_id, then per state: key, ttl in
-- ms ('' = default) } }. Every commit waits meanwhile, so large entries are read few at a time.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'flushed', 'flushed_bytes')
local answer, states = { 0 }, 0
if meta[1] ~= ARGV[1] then return answer end
local flushed = math.min(tonumber(meta[2]), tonumber(ARGV[2]))
redis.pcall('ZREMRANGEBYSCORE', KEYS[3], 0, flushed)
local total, keep, most = tonumber(meta[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local from, count, left = '-', 1, tonumber(ARGV[6])
while states < most and left > 0 do
  local entries, size = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', count), 0
  if #entries == 0 then return answer end
  for _, entry in ipairs(entries) do
    local id, fields = entry[1], entry[2]
    if tonumber(string.match(id, '%-(%d+)$')) > flushed then return answer end
    if states >= most then break end
    local leaving = { id, fields[4] or '' }
    if fields[1] == 'format' and fields[2] == '1' and fields[5] == 'at' and fields[11] == 'bytes' then
      if fields[6] > ARGV[3] and total - (tonumber(fields[12]) or 0) < keep then return answer end
      local at, i = 13, 1
      while fields[at] == 'actor' or fields[at] == 'reason' do at = at + 2 end
      while fields[at] == 'key' .. i do
        leaving[#leaving + 1] = fields[at + 1]
        at = at + 14
        if fields[at] == 'ttl' .. i then
          leaving[#leaving + 1] = fields[at + 1]
          at = at + 2
        else
          leaving[#leaving + 1] = ''
        end
        i = i + 1
      end
    end
    for i = 1, #fields do size = size + #fields[i] end
    states = states + math.max(1, (#leaving - 2) / 2)
    answer[#answer + 1] = leaving
    from = '(' .. id
  end
  left = left - size
  count = math.max(1, math.min(50, 2 * count, math.floor(left * #entries / (size + 1))))
end
answer[1] = 1
return answer
