-- This renews the leases of the worker's shards and gives their rows.
WITH mine AS MATERIALIZED (
    SELECT shard FROM {schema}.shard WHERE owner = %(owner)s ORDER BY shard FOR UPDATE
)
UPDATE {schema}.shard s SET lease_until = now() + %(lease)s FROM mine m WHERE s.shard = m.shard
RETURNING s.shard, s.epoch, s.replid, s.flushed, s.entries, s.bytes, s.excepted
