-- Gives the live states under a prefix that changed last, newest first, those in quarantine too; before them one
-- row without a key, in whose last column stand the numbers and watermarks of all shards at that moment.
SELECT * FROM (
    SELECT NULL AS key, NULL AS op, NULL AS value, NULL AS version, NULL AS epoch, NULL AS n, NULL AS change_id,
           NULL AS parent_change_id, NULL AS encoding, NULL AS schema, NULL AS writer, NULL AS updated_at,
           ARRAY(SELECT format('%%s %%s', shard, flushed) FROM {schema}.shard) AS recent
    UNION ALL
    (SELECT key, op, value, version, epoch, n, change_id, parent_change_id, encoding, schema, writer, updated_at,
            ARRAY[]::text[]
     FROM {schema}.state
     WHERE key >= %(prefix)s AND key < %(beyond)s AND op IN ('set', 'quarantined')
     ORDER BY updated_at DESC, key LIMIT %(limit)s)
) AS page
ORDER BY updated_at DESC NULLS FIRST, key COLLATE "C"
