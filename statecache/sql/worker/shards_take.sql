-- Takes shards that nobody owns, but for those that somebody is just taking, and gives their rows. What the worker
-- avoids it takes only where nobody else did for the length of a lease, if at all. Of a shard beyond whose row changes or
-- epochs stand, which were written with another one, only the number is given: nobody takes it.
WITH unfit AS MATERIALIZED (
    SELECT shard FROM {schema}.shard s
    WHERE (owner IS NULL OR lease_until < now())
          AND (CASE WHEN to_regclass('{schema}.change_position') IS NOT NULL
                    THEN (SELECT max(c.n) FROM {schema}.change c WHERE c.shard = s.shard) > s.flushed ELSE false END
               OR (SELECT max(e.epoch) FROM {schema}.epoch e WHERE e.shard = s.shard) > s.epoch)
), free AS MATERIALIZED (
    SELECT shard FROM {schema}.shard
    WHERE (owner IS NULL OR lease_until < now()) AND NOT shard = ANY (%(never)s)
          AND (NOT shard = ANY (%(avoid)s) OR lease_until < now() - %(lease)s)
          AND shard NOT IN (SELECT shard FROM unfit)
    ORDER BY shard LIMIT %(room)s FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE {schema}.shard s SET owner = %(owner)s, lease_until = now() + %(lease)s FROM free f WHERE s.shard = f.shard
    RETURNING s.shard, s.epoch, s.replid, s.flushed, s.entries, s.bytes, s.excepted
)
SELECT * FROM taken
UNION ALL
SELECT shard, NULL, NULL, NULL, NULL, NULL, NULL FROM unfit
