-- Locks those of the shards that the worker owns and nobody else holds, in the order in which everybody locks them. It
-- gives, last, how often keyframes were moved that the worker may remember.
SELECT shard, epoch, replid, flushed, entries, bytes, excepted, moved_keyframes FROM {schema}.shard
WHERE shard = ANY (%(shards)s) AND owner = %(owner)s ORDER BY shard FOR UPDATE SKIP LOCKED
