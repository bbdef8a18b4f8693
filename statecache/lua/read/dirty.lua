-- Tells which keys of some shards hold changes that Postgres may not have.
--
-- KEYS  per shard: meta, unflushed, changes
-- ARGV  per shard: epoch and watermark that Postgres was seen to have, as 'epoch-n', where it went back, or ''
-- Gives per shard their names; or an integer, the first n that its stream holds or 0, where Postgres lacks changes that are
-- retired, after which nothing tells their keys: they leave the list first, then the stream; or why they cannot be read.
-- What an epoch began with may be such a watermark already: Postgres went back, and a worker has yet to go through the states.

local function names_of(meta, unflushed, changes, went_back)
  local at = redis.pcall('HMGET', meta, 'epoch', 'flushed', 'retired')
  if at.err then return at.err end
  local epoch, flushed, retired = tonumber(at[1] or '0'), tonumber(at[2] or '-1'), tonumber(at[3] or '0')
  local of, floor = string.match(went_back, '^(%d+)-(%d+)$')
  floor = tonumber(floor) or flushed
  if of and tonumber(of) < epoch then floor = 0 end -- its watermark may count what the next epoch began without
  if floor < flushed then
    local first = redis.pcall('XRANGE', changes, '-', '+', 'COUNT', 1)
    if first.err then return first.err end
    local n = first[1] and tonumber(string.match(first[1][1], '-(%d+)$')) or 0
    if n == 0 or n > floor + 1 then return n end
    flushed = floor
  end
  if retired > flushed then return 0 end
  local names = redis.pcall('ZRANGE', unflushed, string.format('(%.0f', flushed), '+inf', 'BYSCORE')
  return names.err or names
end

local answer = {}
for i = 1, #KEYS, 3 do answer[#answer + 1] = names_of(KEYS[i], KEYS[i + 1], KEYS[i + 2], ARGV[(i + 2) / 3]) end
return answer
