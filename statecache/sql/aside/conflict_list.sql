-- Gives the changes that were set aside, the newest first, without their values.
SELECT change_id, key, shard, epoch, n, op, version, at, writer, actor, reason, cause, recorded_at, octet_length(value)
FROM {schema}.conflict
ORDER BY recorded_at DESC, change_id, key
LIMIT %(most)s OFFSET %(skip)s
