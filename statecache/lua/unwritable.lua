-- What a Redis that takes no writes means for a load: without memory it fills nothing, and a reader does without; so does
-- one where Redis' disk fails or its replicas are away, of which whoever `writes` is told. `refused` is the error, or nil.
  local known = refused and (string.find(refused, 'OOM', 1, true) or (not writes
    and (string.find(refused, 'MISCONF', 1, true) or string.find(refused, 'NOREPLICAS', 1, true))))
  if refused and not known then return redis.error_reply(refused) end
