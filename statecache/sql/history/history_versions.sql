-- Gives the changes of a key between two versions, both included, in order or from the newest on, without their values,
-- but whether these are kept (that of the newest change is at least in its state), and with the hashes of each and of the
-- one before it; behind the row with the shard's epoch and watermark, whose other columns are null.
SELECT w.epoch, w.flushed, NULL AS version, NULL AS op, NULL AS change_id, NULL AS parent_change_id, NULL AS n,
       NULL AS at, NULL AS writer, NULL AS actor, NULL AS reason, NULL AS encoding, NULL AS schema, NULL AS size,
       NULL AS digest, NULL AS gap, NULL AS kept, NULL AS key, NULL AS hash, NULL AS hash_before
FROM {schema}.shard w WHERE w.shard = %(shard)s
UNION ALL
SELECT epoch, NULL, version, op, change_id, parent_change_id, n, at, writer, actor, reason, encoding, schema,
       coalesce(size, octet_length(value)), digest, gap,
       op <> 'set' OR value IS NOT NULL OR packed IS NOT NULL
       OR EXISTS (SELECT FROM {schema}.state s WHERE s.key = c.key AND s.version = c.version AND s.op = 'set'), key,
       hash,
       CASE WHEN lag(version) OVER chain = version - 1 THEN lag(hash) OVER chain
            ELSE (SELECT h.hash FROM {schema}.change h WHERE h.key = c.key AND h.version = c.version - 1) END
FROM (SELECT key, version, change_id, parent_change_id, epoch, n, op, value, encoding, schema, writer, actor, reason,
             gap, at, packed, size, digest, hash
      FROM {schema}.change
      WHERE key = %(key)s AND version >= %(first)s AND version <= %(last)s
      ORDER BY CASE WHEN %(down)s THEN -version ELSE version END LIMIT %(limit)s) c
WINDOW chain AS (ORDER BY version)
