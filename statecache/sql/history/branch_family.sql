-- Gives the keys that began from one another as branches, around one key: of each its newest version, and each place
-- where it begins from, or was merged with, another one. At most 200 keys.
WITH RECURSIVE above AS (
    SELECT %(key)s::text COLLATE "C" AS key
    UNION
    SELECT b.origin FROM above a JOIN {schema}.branch b ON b.key = a.key
), family AS (
    SELECT key FROM above
    UNION
    SELECT b.key FROM family f JOIN {schema}.branch b ON b.origin = f.key
), members AS MATERIALIZED (
    SELECT key FROM family LIMIT 200
)
SELECT f.key, coalesce(s.version, 0), coalesce(s.op, 'absent'), s.updated_at, b.version, b.origin, b.origin_version,
       b.at, c.at, coalesce(o.reason LIKE 'merge of %%', false)
FROM members f
LEFT JOIN {schema}.state s ON s.key = f.key
LEFT JOIN {schema}.branch b ON b.key = f.key
LEFT JOIN {schema}.change o ON o.key = b.key AND o.version = b.version
LEFT JOIN {schema}.change c ON c.key = b.origin AND c.version = b.origin_version
ORDER BY b.at NULLS FIRST, f.key, b.version
