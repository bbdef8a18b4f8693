-- This gives the rows of the asked shards, for whoever opens their gates.
SELECT shard, epoch, replid, flushed, entries, bytes FROM {schema}.shard
WHERE shard = ANY (%(shards)s) ORDER BY shard
