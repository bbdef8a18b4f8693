-- Gives every pinned shard its row.
INSERT INTO {schema}.shard (shard)
SELECT generate_series(0, c.shards - 1) FROM {schema}.cluster c
ON CONFLICT DO NOTHING
RETURNING shard
