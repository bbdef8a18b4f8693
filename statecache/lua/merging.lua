-- What a merge makes of a value, from its bytes alone; what is not spelled as JSON is written here is refused, never
-- guessed. No number of a user's becomes a number of Lua's, which are exact to 2^53 only: it stays text, and is added in
-- two halves of ten digits. An array stays bytes, with commas between its elements. `rules.merging` says the same.
--
-- merged(merge, argument, before) gives the bytes; or nil, what hinders it, and the byte that the value begins with:
--   integer    it is no whole number, or not spelled as one
--   overflow   the sum is beyond 64 bits
--   array      it is no array, or not spelled as one
-- `before` is false where there is nothing. `argument` is a whole number, or an array of the items.

local byte, sub = string.byte, string.sub

local function halves(number)
  local sign, digits = string.match(number, '^(%-?)(%d+)$')
  local high, low = tonumber(sub(digits, 1, -11)) or 0, tonumber(sub(digits, -10))
  if sign == '-' then return 0 - high, 0 - low end -- for -0 would be spelled with its sign
  return high, low
end

local function sum(one, other)
  local high, low = halves(one)
  local more_high, more_low = halves(other)
  high, low = high + more_high, low + more_low
  local sign, most = '', '9223372036854775807'
  if high < 0 or (high == 0 and low < 0) then
    sign, most, high, low = '-', '9223372036854775808', 0 - high, 0 - low
  end
  if low < 0 then high, low = high - 1, low + 1e10 end
  if low >= 1e10 then high, low = high + 1, low - 1e10 end
  local digits = high > 0 and format('%.0f%010.0f', high, low) or format('%.0f', low)
  if #digits > 19 or (#digits == 19 and digits > most) then return nil end
  return sign .. digits
end

local function end_of_text(array, at)
  repeat
    at = find(array, '["\\]', at + 1)
    if not at then return nil end
    local escapes = byte(array, at) == 92
    if escapes then at = at + 1 end
  until not escapes
  return at
end

local function end_of_container(array, at)
  local closing, depth = {}, 0
  repeat
    at = find(array, '["%[%]{}]', at)
    if not at then return nil end
    local mark = byte(array, at)
    if mark == 34 then
      at = end_of_text(array, at)
      if not at then return nil end
    elseif mark == 91 or mark == 123 then -- its closing bracket is two further on
      depth = depth + 1
      closing[depth] = mark + 2
    elseif mark == closing[depth] then
      depth = depth - 1
    else
      return nil
    end
    at = at + 1
  until depth == 0
  return at - 1
end

-- Gives the elements of an array, or nil for what is none.
local function elements(array)
  local found, from = {}, 2
  if array == '[]' then return found end
  if byte(array, 1) ~= 91 then return nil end
  while true do
    local mark, _, last = byte(array, from), nil, nil
    if mark == 34 then
      _, last = find(array, '^"[^"\\]*"', from)
      last = last or end_of_text(array, from)
    elseif mark == 91 or mark == 123 then
      last = end_of_container(array, from)
    else
      _, last = find(array, '^[%w.+-]+', from)
    end
    if not last then return nil end
    local element, behind = sub(array, from, last), byte(array, last + 1)
    if mark ~= 34 and mark ~= 91 and mark ~= 123 and element ~= 'true' and element ~= 'false' and element ~= 'null'
      and not find(element, '^%-?%d[%d.eE+-]*$') then return nil end
    found[#found + 1] = element
    if behind == 93 then return last + 1 == #array and found or nil end
    if behind ~= 44 then return nil end
    from = last + 2
  end
end

local function merged(merge, argument, before)
  local begins = before and sub(before, 1, 1)
  if merge == 'increment' then
    before = before or '0'
    if before ~= '0' and not find(before, '^%-?[1-9]%d*$') then return nil, 'integer', begins end
    local total = #before <= 21 and sum(before, argument)
    if not total then return nil, 'overflow', begins end
    return total
  end
  before = before or '[]'
  if before ~= '[]' and not (find(before, '^%[[^%s,%]]') and find(sub(before, -2), '^[^%s,%[]%]$')) then
    return nil, 'array', begins
  end
  local function with(more)
    return before == '[]' and '[' .. more .. ']' or sub(before, 1, -2) .. ',' .. more .. ']'
  end
  if merge == 'append' then return with(sub(argument, 2, -2)) end
  local items, asked, touches = elements(argument), {}, false
  for _, item in ipairs(items) do
    asked[item], touches = true, touches or find(before, item, 1, true)
  end
  local members = {}
  if touches then members = elements(before) end -- what is nowhere among the bytes is no member
  if not members then return nil, 'array', begins end
  local chosen = {}
  if merge == 'remove' then
    for _, member in ipairs(members) do
      if not asked[member] then chosen[#chosen + 1] = member end
    end
    return #chosen == #members and before or '[' .. table.concat(chosen, ',') .. ']'
  end
  for _, member in ipairs(members) do
    asked[member] = nil
  end
  for _, item in ipairs(items) do
    if asked[item] then chosen[#chosen + 1], asked[item] = item, nil end
  end
  return #chosen == 0 and before or with(table.concat(chosen, ','))
end
