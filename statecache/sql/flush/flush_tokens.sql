-- Keeps the newest fencing token of each lock, forward only. Its shard's row is locked, so nobody else moves it.
INSERT INTO {schema}.lock_token AS t (key, epoch, count)
SELECT key, epoch, count FROM unnest(%(keys)s, %(epochs)s, %(counts)s) AS n (key, epoch, count)
ON CONFLICT (key) DO UPDATE SET epoch = excluded.epoch, count = excluded.count
WHERE (excluded.epoch, excluded.count) > (t.epoch, t.count)
