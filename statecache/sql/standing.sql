-- This says how far Postgres is with positions that were acknowledged: each shard's epoch and watermark, and whether
-- the position itself is held, in its chain, as a conflict or in quarantine.
SELECT w.shard, w.epoch, w.n, s.epoch, s.flushed,
    EXISTS (SELECT FROM {schema}.change c WHERE c.shard = w.shard AND c.n = w.n AND c.epoch = w.epoch)
    OR EXISTS (SELECT FROM {schema}.conflict c WHERE c.shard = w.shard AND c.n = w.n AND c.epoch = w.epoch)
    OR EXISTS (SELECT FROM {schema}.quarantine q WHERE q.shard = w.shard AND q.n = w.n AND q.epoch = w.epoch)
FROM unnest(%(shards)s::integer[], %(epochs)s::bigint[], %(ns)s::bigint[]) AS w (shard, epoch, n)
JOIN {schema}.shard s ON s.shard = w.shard
