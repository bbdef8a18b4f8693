-- Gives the changes of a key between two versions, both included, in order or from the newest on, without their values,
-- but whether these are kept (that of the newest change is at least in its state); behind the row with the shard's epoch
-- and watermark, whose last column is null.
SELECT w.epoch, w.flushed, NULL AS version, NULL AS op, NULL AS change_id, NULL AS parent_change_id, NULL AS n,
       NULL AS at, NULL AS writer, NULL AS actor, NULL AS reason, NULL AS encoding, NULL AS schema, NULL AS size,
       NULL AS digest, NULL AS gap, NULL AS kept, NULL AS key
FROM {schema}.shard w WHERE w.shard = %(shard)s
UNION ALL
SELECT epoch, NULL, version, op, change_id, parent_change_id, n, at, writer, actor, reason, encoding, schema,
       coalesce(size, octet_length(value)), digest, gap,
       op <> 'set' OR value IS NOT NULL OR packed IS NOT NULL
       OR EXISTS (SELECT FROM {schema}.state s WHERE s.key = c.key AND s.version = c.version AND s.op = 'set'), key
FROM (SELECT * FROM {schema}.change
      WHERE key = %(key)s AND version >= %(first)s AND version <= %(last)s
      ORDER BY CASE WHEN %(down)s THEN -version ELSE version END LIMIT %(limit)s) c
