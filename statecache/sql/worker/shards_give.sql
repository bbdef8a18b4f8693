-- Gives shards back, so that others need not wait for the lease's end; one that another session holds is left to it.
WITH mine AS MATERIALIZED (
    SELECT shard FROM {schema}.shard
    WHERE owner = %(owner)s AND shard = ANY (%(shards)s) ORDER BY shard FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.shard s SET owner = NULL, lease_until = now() FROM mine m WHERE s.shard = m.shard
