-- Which server this is, for a script that has said what `fence` is (on|off). A shard is open where its meta's replid is
-- `server`, and `role` is master: a replica has its primary's replid and meta, and may be as old as it likes.
local info, server, role = '', 'off', 'master'
if fence == 'on' then
  info = redis.call('INFO', 'replication')
  server, role = string.match(info, 'master_replid:(%x+)'), string.match(info, 'role:(%a+)')
end
