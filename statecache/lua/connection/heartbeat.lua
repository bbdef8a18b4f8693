-- Tells a tracked connection that it is still heard, and by whom: what was pushed before this answer has arrived.
--
-- KEYS  1 a shard's meta, by which another data set behind the same server is known: nobody is told of a SWAPDB
-- ARGV  1 fence (on|off)
-- Gives role, replid and the replicas in good standing in one text, and the meta's epoch, replid and cluster; another
-- text than before is another server, or another data set.

local meta = redis.pcall('HMGET', KEYS[1], 'epoch', 'replid', 'cluster')
local of = meta.err or (meta[1] or '') .. ' ' .. (meta[2] or '') .. ' ' .. (meta[3] or '')
if ARGV[1] ~= 'on' then return 'off ' .. of end
local info = redis.call('INFO', 'replication')
return (string.match(info, 'role:(%a+)') or '') .. ' ' .. (string.match(info, 'master_replid:(%x+)') or '') .. ' '
  .. (string.match(info, 'min_slaves_good_slaves:(%d+)') or '') .. ' ' .. of
