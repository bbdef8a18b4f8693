#!lua flags=allow-oom
-- Asks for the turn of one state, or passes it on. It may run when memory is full: what it writes ends within seconds.
--
-- KEYS  1 turn  2 calls (a list)  3 state
-- ARGV  1 the token under which it is held; '' asks for it  2 the next token  3 the change_id that the state must have,
--       or ''  4 ms that a turn lasts which nobody passes on  5 bytes of a value that goes with a call, at most
--       6… the fields of a state that a reader asks for; the third is the value, the sixth the change_id
-- Gives 1 where whoever has waited longest is called, or else the next one that waits; 0 where nothing is done, for
-- somebody else has it, it is not held under that token any more, or the state is another; -1 where this user may not
-- call, or be called.
-- A call is the next token, and the state, so that nobody need read it, unless that is large or not all there. One that
-- nobody waited for lies there, and whoever asks then finds it renewed.

local turn, calls, token, check = KEYS[1], KEYS[2], ARGV[1], redis.acl_check_cmd
local held = redis.call('HGET', turn, 'token')
if token ~= '' then
  if held ~= token then return 0 end
elseif check and not (check('RPUSH', calls, '') and check('BLMPOP', '1', '1', calls, 'LEFT')) then
  return -1
elseif held and redis.call('EXISTS', calls) == 0 then
  return 0
end

local state = redis.pcall('HMGET', KEYS[3], unpack(ARGV, 6))
local whole = not state.err
for i = 1, whole and #ARGV - 5 or 0 do whole = whole and state[i] end
if ARGV[3] ~= '' and not (whole and state[6] == ARGV[3]) then return 0 end
redis.call('DEL', calls)
if whole and #state[3] <= tonumber(ARGV[5]) then
  redis.call('RPUSH', calls, ARGV[2], unpack(state))
else
  redis.call('RPUSH', calls, ARGV[2])
end
redis.call('PEXPIRE', calls, ARGV[4])
redis.call('HSET', turn, 'token', ARGV[2])
redis.call('PEXPIRE', turn, ARGV[4])
return 1
