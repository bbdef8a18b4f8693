-- Says how far Postgres is with positions that were acknowledged: each shard's epoch and watermark, whether the
-- position itself is held, in its chain, as a conflict or in quarantine, whether a later epoch began before it, and
-- whether anything that was acknowledged in its shard is not in its chain. What was kept of an old primary's branch is lost;
-- what stands above the watermark was written with another row (see `rows_missing`).
SELECT w.shard, w.epoch, w.n, s.epoch, s.flushed,
    EXISTS (SELECT FROM {schema}.change c WHERE c.shard = w.shard AND c.n = w.n AND c.epoch = w.epoch
            AND c.n <= s.flushed)
    OR EXISTS (SELECT FROM {schema}.conflict c WHERE c.shard = w.shard AND c.n = w.n AND c.epoch = w.epoch
               AND c.cause <> 'branch')
    OR EXISTS (SELECT FROM {schema}.quarantine q WHERE q.shard = w.shard AND q.n = w.n AND q.epoch = w.epoch),
    EXISTS (SELECT FROM {schema}.epoch e WHERE e.shard = w.shard AND e.epoch > w.epoch AND e.start_n < w.n),
    s.excepted > 0
FROM unnest(%(shards)s::integer[], %(epochs)s::bigint[], %(ns)s::bigint[]) AS w (shard, epoch, n)
JOIN {schema}.shard s ON s.shard = w.shard
