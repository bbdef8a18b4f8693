-- Moves watermarks; the rows are locked, and their owner is known. Where all changes before have their hashes, and all that
-- are written now, the place up to which they have moves along.
UPDATE {schema}.shard s
SET flushed = m.flushed, entries = m.entries, bytes = m.bytes, excepted = greatest(s.excepted, m.excepted),
    hashed = CASE WHEN m.hashed AND s.hashed >= s.flushed THEN m.flushed ELSE least(s.hashed, s.flushed) END,
    flushed_at = now(), lease_until = greatest(s.lease_until, now() + %(lease)s)
FROM unnest(%(shards)s, %(flushed)s, %(entries)s, %(bytes)s, %(excepted)s, %(hashed)s)
     AS m (shard, flushed, entries, bytes, excepted, hashed)
WHERE s.shard = m.shard
