-- Takes shards that nobody owns, but for those that somebody is just taking, and gives their rows. What the worker
-- avoids it takes only where nobody else did for the length of a lease, if at all.
WITH free AS MATERIALIZED (
    SELECT shard FROM {schema}.shard
    WHERE (owner IS NULL OR lease_until < now()) AND NOT shard = ANY (%(never)s)
          AND (NOT shard = ANY (%(avoid)s) OR lease_until < now() - %(lease)s)
    ORDER BY shard LIMIT %(room)s FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.shard s SET owner = %(owner)s, lease_until = now() + %(lease)s FROM free f WHERE s.shard = f.shard
RETURNING s.shard, s.epoch, s.replid, s.flushed, s.entries, s.bytes, s.excepted
