-- Tells a tracked connection that it is still heard, and by whom: what was pushed before this answer has arrived.
--
-- ARGV  1 fence (on|off)
-- Gives role, replid and the replicas in good standing in one text; another text than before is another server.

if ARGV[1] ~= 'on' then return 'off' end
local info = redis.call('INFO', 'replication')
return (string.match(info, 'role:(%a+)') or '') .. ' ' .. (string.match(info, 'master_replid:(%x+)') or '') .. ' '
  .. (string.match(info, 'min_slaves_good_slaves:(%d+)') or '')
