-- Says what became of a change: where it stands, how far its shard is flushed, and which epoch ended the position
-- that its writer was told, if one began before it.
SELECT 'change' AS found, key, version, parent_change_id, epoch, n, op, at, sha256(value) AS digest FROM {schema}.change
WHERE change_id = %(change_id)s
UNION ALL
SELECT CASE cause WHEN 'branch' THEN 'branch' ELSE 'conflict' END, key, version, parent_change_id, epoch, n, op, at, NULL
FROM {schema}.conflict
WHERE change_id = %(change_id)s
UNION ALL
SELECT 'quarantine', unnest(keys), 0, '', epoch, n, '', recorded_at, NULL FROM {schema}.quarantine
WHERE change_id = %(change_id)s
UNION ALL
SELECT 'shard', '', 0, '', epoch, flushed, '', now(), NULL FROM {schema}.shard WHERE shard = %(shard)s
UNION ALL
(SELECT 'ended', '', 0, '', epoch, start_n, '', opened_at, NULL FROM {schema}.epoch
 WHERE shard = %(shard)s AND epoch > %(epoch)s AND start_n < %(n)s ORDER BY epoch LIMIT 1)
