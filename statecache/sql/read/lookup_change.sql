-- Says what became of a change: where it stands, how far its shard is flushed, and which epoch ended the position
-- that its writer was told, if one began before it. A `part` is what stands of a commit that was rebuilt in part;
-- what is `lost` went with its entry in the stream.
SELECT CASE WHEN EXISTS (SELECT FROM {schema}.lost l
                         WHERE l.shard = c.shard AND l.epoch >= c.epoch AND c.n BETWEEN l.first_n AND l.last_n
                               AND l.cause = 'gap' AND l.keys <> '{}' AND l.positions = l.last_n - l.first_n + 1)
            THEN 'part' ELSE 'change' END AS found,
       key, version, parent_change_id, epoch, n, op, at, coalesce(digest, sha256(value)) AS digest,
       CASE op WHEN 'set' THEN encoding ELSE '' END AS encoding FROM {schema}.change c
WHERE change_id = %(change_id)s
UNION ALL
SELECT CASE cause WHEN 'branch' THEN 'branch' ELSE 'conflict' END, key, version, parent_change_id, epoch, n, op, at, NULL, ''
FROM {schema}.conflict
WHERE change_id = %(change_id)s
UNION ALL
SELECT 'quarantine', unnest(keys), 0, '', epoch, n, '', recorded_at, NULL, '' FROM {schema}.quarantine
WHERE change_id = %(change_id)s
UNION ALL
SELECT 'lost', key, 0, '', epoch, n, '', reported_at, NULL, '' FROM {schema}.lost_change WHERE change_id = %(change_id)s
UNION ALL
SELECT 'shard', '', 0, '', epoch, flushed, '', now(), NULL, '' FROM {schema}.shard WHERE shard = %(shard)s
UNION ALL
(SELECT 'ended', '', 0, '', epoch, start_n, '', opened_at, NULL, '' FROM {schema}.epoch
 WHERE shard = %(shard)s AND epoch > %(epoch)s AND start_n < %(n)s ORDER BY epoch LIMIT 1)
