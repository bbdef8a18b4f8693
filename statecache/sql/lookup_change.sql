-- This says what became of a change: where it stands, and how far its shard is flushed.
SELECT 'change' AS found, key, version, parent_change_id, epoch, n, op, at FROM {schema}.change
WHERE change_id = %(change_id)s
UNION ALL
SELECT 'conflict', key, version, parent_change_id, epoch, n, op, at FROM {schema}.conflict
WHERE change_id = %(change_id)s
UNION ALL
SELECT 'quarantine', unnest(keys), 0, '', epoch, n, '', recorded_at FROM {schema}.quarantine
WHERE change_id = %(change_id)s
UNION ALL
SELECT 'shard', '', 0, '', epoch, flushed, '', now() FROM {schema}.shard WHERE shard = %(shard)s
