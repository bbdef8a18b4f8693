-- Gives one change that was set aside, whole.
SELECT change_id, key, shard, epoch, n, op, version, at, writer, actor, reason, cause, recorded_at,
       octet_length(value), parent_change_id, value, encoding, schema
FROM {schema}.conflict
WHERE change_id = %(change_id)s AND key = %(key)s
