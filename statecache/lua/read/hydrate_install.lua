-- Installs what Postgres holds of states, each only where its hydration token and the epoch still stand.
--
-- KEYS  1 meta  2 hydrating  3… one state each
-- ARGV  1 fence (on|off)  2 token  3 epoch at the token  4… per state: key, op, value, version, epoch, change_id,
--       parent_change_id, position, encoding, schema, updated_at, writer, recent, ttl in ms, and 1 where changes of
--       the key are lost, else '', and `parts` as a commit writes it, or ''
-- Gives how many were installed, or -1 where the shard is fenced or at another epoch.

local head = redis.call('HMGET', KEYS[1], 'epoch', 'replid')
local fence = ARGV[1]
-- include lineage
if head[1] ~= ARGV[3] or head[2] ~= server then return -1 end
local names = { 'key', 'op', 'value', 'version', 'epoch', 'change_id', 'parent_change_id', 'position', 'encoding',
  'schema', 'updated_at', 'writer', 'recent' }
local installed, mine = 0, ARGV[2] .. '|' .. ARGV[3] .. '|'
for i = 3, #KEYS do
  local at = 4 + (i - 3) * 16
  local standing = redis.call('HGET', KEYS[2], ARGV[at])
  if standing and string.sub(standing, 1, #mine) == mine and redis.call('EXISTS', KEYS[i]) == 0 then
    local fields = {}
    for j, name in ipairs(names) do
      fields[#fields + 1] = name
      fields[#fields + 1] = ARGV[at + j - 1]
    end
    redis.call('HSET', KEYS[i], unpack(fields))
    if ARGV[at + 14] ~= '' then redis.call('HSET', KEYS[i], 'lost', ARGV[at + 14]) end
    if ARGV[at + 15] ~= '' then redis.call('HSET', KEYS[i], 'parts', ARGV[at + 15]) end
    redis.call('PEXPIRE', KEYS[i], ARGV[at + 13])
    redis.call('HDEL', KEYS[2], ARGV[at])
    installed = installed + 1
  end
end
return installed
