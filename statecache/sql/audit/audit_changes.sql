-- Gives the chains of the asked keys as they were flushed.
SELECT key, version, change_id, parent_change_id, shard, epoch, n, op, gap, value, writer
FROM {schema}.change WHERE key = ANY (%(keys)s) ORDER BY key, version
