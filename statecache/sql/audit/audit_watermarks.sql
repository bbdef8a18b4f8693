-- Gives every shard's watermark.
SELECT shard, flushed FROM {schema}.shard ORDER BY shard
