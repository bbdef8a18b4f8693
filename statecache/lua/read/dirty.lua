-- Tells which keys of some shards hold changes that Postgres may not have.
--
-- KEYS  per shard: meta, unflushed, changes
-- ARGV  per shard: epoch and watermark that Postgres was seen to have, as 'epoch-n', where it went back, or ''
-- Gives per shard their names; or an integer, the first n that its stream holds or 0, where Postgres lacks changes that are
-- retired, after which nothing tells their keys: they leave the list first, then the stream; or why they cannot be read.

local function names_of(meta, unflushed, changes, went_back)
  local at = redis.pcall('HMGET', meta, 'epoch', 'flushed', 'retired')
  if at.err then return at.err end
  local epoch, flushed = at[1] or '0', at[2] or '-1'
  if went_back ~= '' then
    local of, floor = string.match(went_back, '^(%d+)-(%d+)$')
    -- An older epoch's watermark may count what the next one began without.
    if tonumber(of) < tonumber(epoch) then floor = '0' end
    if tonumber(of) <= tonumber(epoch) and tonumber(floor) < tonumber(flushed) then
      local first = redis.pcall('XRANGE', changes, '-', '+', 'COUNT', 1)
      if first.err then return first.err end
      local n = first[1] and tonumber(string.match(first[1][1], '-(%d+)$')) or 0
      if n == 0 or n > tonumber(floor) + 1 or tonumber(at[3] or '0') > tonumber(floor) then return n end
      flushed = floor
    end
  end
  local names = redis.pcall('ZRANGE', unflushed, '(' .. flushed, '+inf', 'BYSCORE')
  return names.err or names
end

local answer = {}
for i = 1, #KEYS, 3 do answer[#answer + 1] = names_of(KEYS[i], KEYS[i + 1], KEYS[i + 2], ARGV[(i + 2) / 3]) end
return answer
