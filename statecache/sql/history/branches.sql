-- Gives which changes of other keys were made from those of a key, or of all keys of a group, in the order of these;
-- last whether the origin was not known to be there when that was recorded.
SELECT b.key, b.version, c.change_id, b.origin, b.origin_version, coalesce(nullif(b.origin_change_id, ''), o.change_id, ''),
       b.at, c.writer, c.actor, c.reason, b.origin_change_id = ''
FROM {schema}.branch b JOIN {schema}.change c ON c.key = b.key AND c.version = b.version
LEFT JOIN {schema}.change o ON o.key = b.origin AND o.version = b.origin_version
WHERE b.origin = %(key)s OR (%(whole)s AND b.origin > %(key)s || '/' AND b.origin < %(beyond)s)
ORDER BY b.origin, b.origin_version, b.at, b.key LIMIT %(limit)s
