-- This gives a page of live states under a prefix, by key, and of those whose newest change is in quarantine.
SELECT key, op, value, version, epoch, n, change_id, parent_change_id, encoding, schema, writer, updated_at,
       ARRAY[]::text[] AS recent
FROM {schema}.state
WHERE key > %(after)s AND key >= %(prefix)s AND key < %(beyond)s AND op IN ('set', 'quarantined')
ORDER BY key LIMIT %(limit)s
