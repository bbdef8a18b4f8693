-- Moves watermarks; the rows are locked, and their owner is known.
UPDATE {schema}.shard s
SET flushed = m.flushed, entries = m.entries, bytes = m.bytes, excepted = greatest(s.excepted, m.excepted),
    flushed_at = now(), lease_until = greatest(s.lease_until, now() + %(lease)s)
FROM unnest(%(shards)s, %(flushed)s, %(entries)s, %(bytes)s, %(excepted)s)
     AS m (shard, flushed, entries, bytes, excepted)
WHERE s.shard = m.shard
