-- Gives those of these shards that have changes beyond the place up to which all have their hashes.
SELECT shard FROM {schema}.shard WHERE shard = ANY (%(shards)s) AND hashed < flushed ORDER BY shard
