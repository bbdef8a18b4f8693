-- An attempt that was given up, and whose sender was told since that the commit is refused (see `refused`). It is known by
-- its number, for no two clocks are the same.
if head[9] and find(head[9], ' ' .. change_id .. '/', 1, true) then
  local sender, number = string.match(nonce, '^(%x+)%.(%d+)$')
  local refused = sender and string.match(head[9], ' ' .. change_id .. '/' .. sender .. '=(%d+)@')
  if refused and tonumber(number) <= tonumber(refused) then return { nonce, 'LATE' } end
end
