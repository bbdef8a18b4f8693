-- Gives epoch and watermark of each asked shard.
SELECT w.shard, w.epoch, w.flushed FROM {schema}.shard w WHERE w.shard = ANY (%(shards)s)
