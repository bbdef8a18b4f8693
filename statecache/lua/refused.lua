-- Makes a conflict FINAL: attempts of the commit that its sender has given up will not be executed any more. A sender
-- numbers its attempts, and `meta.refused` holds up to which number they are refused, for a minute longer than any of
-- them could be executed by the clock: when the last of them goes, then for each ' change_id/sender=number@ms'. Only so
-- many are kept there.
    local sender, number = string.match(nonce, '^(%x+)%.(%d+)$')
    if unanswered and sender then
      local time, kept, others = call('TIME'), '', 0
      local mine, goes = change_id .. '/' .. sender, unanswered + 60000
      local last = goes
      for id, until_number, ms in string.gmatch(head[9] or '', ' (%S+)=(%d+)@(%d+)') do
        if id == mine then
          goes = math.max(goes, tonumber(ms))
        elseif tonumber(ms) >= time[1] * 1000 then
          kept, others, last = kept .. ' ' .. id .. '=' .. until_number .. '@' .. ms, others + 1, math.max(last, tonumber(ms))
        end
      end
      local refused = format('%.0f%s %s=%s@%.0f', math.max(last, goes), kept, mine, number, goes)
      if others < 100 and type(pcall('HSET', meta, 'refused', refused)) == 'number' then conflict[6] = 'FINAL' end
    end
