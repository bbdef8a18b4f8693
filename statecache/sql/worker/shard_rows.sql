-- Gives rows of shards as they are, whoever owns them.
SELECT shard, epoch, replid, flushed, entries, bytes, excepted FROM {schema}.shard WHERE shard = ANY (%(shards)s)
