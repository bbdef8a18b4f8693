-- Tells which commands this user may not run.
--
-- KEYS  none: the keys that the commands name are not touched, and a user may lack them
-- ARGV  1 commands, parted by semicolons, their words by blanks
-- Gives what is in the way: '!the command NAME' for one that this server does not know, the command where it may not be run,
-- and the command behind ~ or & where it may not be run on its keys or its channel. A server before Redis 7 gives nothing.

-- include permitted

local answer = {}
if redis.acl_check_cmd then ask(answer, redis.acl_check_cmd, ARGV[1]) end
return answer
