-- This gives shards back, so that others need not wait for the lease's end.
WITH mine AS MATERIALIZED (
    SELECT shard FROM {schema}.shard
    WHERE owner = %(owner)s AND shard = ANY (%(shards)s) ORDER BY shard FOR UPDATE
)
UPDATE {schema}.shard s SET owner = NULL, lease_until = NULL FROM mine m WHERE s.shard = m.shard
