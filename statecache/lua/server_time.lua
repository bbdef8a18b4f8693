-- Returns the server's time in ms since 1970, as a text; '' where this user may not ask for it.
local function server_time()
  local now = redis.pcall('TIME')
  return now.err and '' or string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
end
