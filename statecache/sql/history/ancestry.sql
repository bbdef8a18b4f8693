-- Gives from which changes of other keys those of some keys were made, and those of these, and so on: the newest first; last
-- whether the origin was not known to be there when that was recorded.
WITH RECURSIVE found (key) AS (
    SELECT unnest(%(keys)s::text[]) COLLATE "C"
    UNION
    SELECT b.origin FROM found f JOIN {schema}.branch b ON b.key = f.key)
SELECT b.key, b.version, c.change_id, b.origin, b.origin_version, coalesce(nullif(b.origin_change_id, ''), o.change_id, ''),
       b.at, c.writer, c.actor, c.reason, b.origin_change_id = ''
FROM found f JOIN {schema}.branch b ON b.key = f.key JOIN {schema}.change c ON c.key = b.key AND c.version = b.version
LEFT JOIN {schema}.change o ON o.key = b.origin AND o.version = b.origin_version
ORDER BY b.at DESC, b.key, b.version DESC LIMIT %(limit)s
