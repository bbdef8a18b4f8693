-- What stands in the way of loading a state, for a script of which KEYS[2] are the unflushed states, KEYS[3] the tokens and
-- KEYS[i] is the state: its `kind`, hash or none, the n at which it is `dirty` and the token that is `standing`.
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'hash' and kind ~= 'none' then return { 'FOREIGN', KEYS[i], 'it is a ' .. kind } end
  if kind == 'hash' and redis.call('HEXISTS', KEYS[i], 'version') == 0 then
    return { 'FOREIGN', KEYS[i], 'fields are missing' }
  end
  local dirty, standing = redis.pcall('ZSCORE', KEYS[2], key), redis.pcall('HGET', KEYS[3], key)
  if error_of(dirty) then return { 'FOREIGN', KEYS[2], dirty.err } end
  if error_of(standing) then return { 'FOREIGN', KEYS[3], standing.err } end
