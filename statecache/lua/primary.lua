-- Refuses what is asked of a server that is no primary, or of another deployment's data set, for a script that has learned
-- `role` from lineage, and says which `cluster` it is asked for ('' or nil where that is not known) and which one is the
-- `owner` of the data set (false where nobody is). Whoever is refused leaves all connections to that server.
if role ~= 'master' then return redis.error_reply('READONLY this server is no primary') end
if owner and cluster and cluster ~= '' and owner ~= cluster then
  return redis.error_reply('READONLY this data set is of cluster ' .. owner .. ', not of ' .. cluster)
end
