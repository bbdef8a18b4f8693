-- Whether a value that was stored at a time, a text as `updated_at`, ends as is asked: at a moment, or so long afterwards.
local function ends_alike(asked, stored, at)
  local form, ms = string.match(asked, '^(%a+) in (%d+)$')
  if not form then return asked == stored end
  local year, month, day, hour, minute, second, rest = string.match(at, '^(%d+)-(%d+)-(%d+)T(%d+):(%d+):(%d+)%.(%d%d%d)')
  if not year then return true end
  local months = (month + 9) % 12 -- since March, for then leap days end their years
  if months > 9 then year = year - 1 end
  local days = 365 * year + math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
    + math.floor((153 * months + 2) / 5) + day - 719469
  local seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
  return stored == format('%s until %.0f', form, seconds * 1000 + rest + ms)
end
