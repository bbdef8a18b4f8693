-- Up to which n Postgres has to hold a shard of which it shall say what Redis does not hold: `head` is epoch, replid, flushed
-- and retired of its meta. An epoch that began with a Postgres that went back has a watermark below what was retired before.
local least = head[3] or '0'
if tonumber(head[4] or '0') > tonumber(least) then least = head[4] end
