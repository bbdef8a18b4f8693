-- Takes entries out of a stream that hold what is erased, some at a time. Postgres holds all that goes.
--
-- KEYS  1 changes
-- ARGV  1 id to begin at  2 id to end at  3 entries to look at at most  4 bytes after which to stop  5 ids of the entries
--       that stay, blanks between and around them  6 a key that is erased  7… prefixes of others
-- Gives { how many were taken out, their bytes, the id to go on at or '' }.

local removed, freed, seen, from = 0, 0, 0, ARGV[1]
for _ = 1, tonumber(ARGV[3]) do
  local entry = redis.call('XRANGE', KEYS[1], from, ARGV[2], 'COUNT', 1)[1]
  if not entry then return { removed, freed, '' } end
  local bytes, goes = 0, false
  for i = 1, #entry[2], 2 do
    local name, text = entry[2][i], entry[2][i + 1]
    bytes = bytes + #text
    if string.find(name, '^key%d+$') then
      goes = goes or text == ARGV[6]
      for j = 7, #ARGV do goes = goes or string.sub(text, 1, #ARGV[j]) == ARGV[j] end
    end
  end
  if goes and not string.find(ARGV[5], ' ' .. entry[1] .. ' ', 1, true) then
    removed, freed = removed + redis.call('XDEL', KEYS[1], entry[1]), freed + bytes
  end
  from, seen = '(' .. entry[1], seen + bytes
  if seen >= tonumber(ARGV[4]) then break end
end
return { removed, freed, from }
