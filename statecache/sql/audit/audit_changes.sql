-- Gives the chains of the asked keys as they were flushed, with what is kept of each value.
SELECT key, version, change_id, parent_change_id, shard, epoch, n, op, gap, value, writer, packed, keyframe, digest
FROM {schema}.change WHERE key = ANY (%(keys)s) ORDER BY key, version
