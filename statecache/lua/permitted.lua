-- Puts behind an answer what is in the way of commands, parted by semicolons, their words by blanks: '!the command NAME'
-- for one that this server does not know, the command itself where this user may not run it at all, and the command
-- behind ~ or & where it may be run, but not on these keys or channels.
local function ask(answer, check, commands)
  for command in string.gmatch(commands or '', '[^;]+') do
    local words = {}
    for word in string.gmatch(command, '%S+') do words[#words + 1] = word end
    local known, allowed = pcall(check, unpack(words))
    if not known then
      answer[#answer + 1] = '!the command ' .. words[1]
    elseif not allowed then
      local _, alone = pcall(check, unpack(words, 1, words[1] == 'XINFO' and 2 or 1))
      local place = string.find(words[1], '^S[PS]UB') and '&' or '~'
      answer[#answer + 1] = (alone == true and place or '') .. command
    end
  end
end
