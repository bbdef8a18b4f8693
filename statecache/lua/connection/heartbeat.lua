-- Tells a tracked connection that it is still heard, and by whom: what was pushed before this answer has arrived.
--
-- KEYS  1 a shard's meta, by which another data set behind the same server is known: nobody is told of a SWAPDB
-- ARGV  1 fence (on|off)
-- Gives role, replid and the replicas in good standing in one text, and the meta's epoch, replid and cluster; another
-- text than before is another server, or another data set. Behind it, after the last blank, stands the server's time in
-- ms, or '' where this user may not ask for it.

local meta = redis.pcall('HMGET', KEYS[1], 'epoch', 'replid', 'cluster')
local of = meta.err or (meta[1] or '') .. ' ' .. (meta[2] or '') .. ' ' .. (meta[3] or '')
local fence = ARGV[1]
-- include server_time
-- include lineage
if fence ~= 'on' then return 'off ' .. of .. ' ' .. server_time() end
return (role or '') .. ' ' .. (server or '') .. ' '
  .. (string.match(info, 'min_slaves_good_slaves:(%d+)') or '') .. ' ' .. of .. ' ' .. server_time()
