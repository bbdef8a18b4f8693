-- Tells which keys of some shards hold changes that Postgres may not have.
--
-- KEYS  per shard: meta, unflushed
-- ARGV  per shard: the watermark that Postgres was seen to have, where it went back, or ''
-- Gives per shard their names, or the reason why they cannot be read.

local answer = {}
for i = 1, #KEYS, 2 do
  local floor, flushed = ARGV[(i + 1) / 2], redis.pcall('HGET', KEYS[i], 'flushed')
  if type(flushed) == 'table' then
    answer[#answer + 1] = flushed.err
  else
    flushed = flushed or '-1'
    if floor ~= '' and tonumber(floor) < tonumber(flushed) then flushed = floor end
    local names = redis.pcall('ZRANGE', KEYS[i + 1], '(' .. flushed, '+inf', 'BYSCORE')
    answer[#answer + 1] = names.err or names
  end
end
return answer
