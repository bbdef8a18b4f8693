-- Tells which commands this user may not run.
--
-- KEYS  the keys that the commands name
-- ARGV  commands, their words parted by blanks
-- Gives those that are refused; a command that this server does not know is not among them.

local refused = {}
for _, command in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(command, '%S+') do words[#words + 1] = word end
  local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if known and not allowed then refused[#refused + 1] = command end
end
return refused
