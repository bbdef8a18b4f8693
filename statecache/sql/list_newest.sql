-- This gives the live states under a prefix that changed last, newest first, those in quarantine too.
SELECT key, op, value, version, epoch, n, change_id, parent_change_id, encoding, schema, writer, updated_at,
       ARRAY[]::text[] AS recent
FROM {schema}.state
WHERE key >= %(prefix)s AND key < %(beyond)s AND op IN ('set', 'quarantined')
ORDER BY updated_at DESC, key LIMIT %(limit)s
