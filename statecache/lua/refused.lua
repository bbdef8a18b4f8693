-- Makes a conflict FINAL: attempts of the commit that were never answered will not be executed any more. `meta.refused`
-- holds which commits were refused, each with the greatest of their attempts' times, past which these are refused
-- without it. Only so many are kept there.
    if unanswered then
      local time, kept, others = call('TIME'), '', 0
      for id, ms in string.gmatch(head[9] or '', ' (%S+)=(%d+)') do
        if id ~= change_id and tonumber(ms) >= time[1] * 1000 then
          kept, others = kept .. ' ' .. id .. '=' .. ms, others + 1
        end
      end
      local refused = kept .. ' ' .. change_id .. '=' .. unanswered
      if others < 100 and type(pcall('HSET', meta, 'refused', refused)) == 'number' then conflict[6] = 'FINAL' end
    end
