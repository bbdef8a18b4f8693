-- Renews the leases of the worker's shards and gives their rows. One that another session holds is not waited for:
-- it keeps its lease as it is, and only its number is given.
WITH mine AS MATERIALIZED (
    SELECT shard FROM {schema}.shard WHERE owner = %(owner)s ORDER BY shard FOR UPDATE SKIP LOCKED
), renewed AS (
    UPDATE {schema}.shard s SET lease_until = now() + %(lease)s FROM mine m WHERE s.shard = m.shard
    RETURNING s.shard, s.epoch, s.replid, s.flushed, s.entries, s.bytes, s.excepted
)
SELECT * FROM renewed
UNION ALL
SELECT shard, NULL, NULL, NULL, NULL, NULL, NULL FROM {schema}.shard
WHERE owner = %(owner)s AND shard NOT IN (SELECT shard FROM renewed)
