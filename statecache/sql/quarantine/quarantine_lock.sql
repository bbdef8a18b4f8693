-- Holds off the shard's flusher, which takes the same lock, and an erasure of the parked entry, until the end of the
-- transaction.
SELECT s.shard, (SELECT q.n FROM {schema}.quarantine q
                 WHERE q.shard = s.shard AND q.epoch = %(epoch)s AND q.n = %(n)s FOR UPDATE)
FROM {schema}.shard s WHERE s.shard = %(shard)s ORDER BY s.shard FOR UPDATE OF s
