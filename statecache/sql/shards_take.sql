-- This takes shards that nobody owns, but for those that somebody is just taking, and gives their rows.
WITH free AS MATERIALIZED (
    SELECT shard FROM {schema}.shard
    WHERE (owner IS NULL OR lease_until < now()) AND NOT shard = ANY (%(avoid)s)
    ORDER BY shard LIMIT %(room)s FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.shard s SET owner = %(owner)s, lease_until = now() + %(lease)s FROM free f WHERE s.shard = f.shard
RETURNING s.shard, s.epoch, s.replid, s.flushed, s.entries, s.bytes, s.excepted
