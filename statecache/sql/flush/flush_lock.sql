-- Locks those of the shards that the worker owns and nobody else holds, in the order in which everybody locks them.
SELECT shard, epoch, replid, flushed, entries, bytes, excepted FROM {schema}.shard
WHERE shard = ANY (%(shards)s) AND owner = %(owner)s ORDER BY shard FOR UPDATE SKIP LOCKED
