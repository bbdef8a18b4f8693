-- Gives what was made from changes of a key, and of its branches, and theirs, as far as these are among the first %(keys)s:
-- the change of another key, with its reason, and the change that it came from.
WITH RECURSIVE family (key) AS (
    SELECT %(key)s::text COLLATE "C"
    UNION
    SELECT b.key FROM family f
    JOIN {schema}.branch b ON b.origin = f.key
    JOIN {schema}.change c ON c.key = b.key AND c.version = b.version
    WHERE c.reason LIKE 'branch of %%')
SELECT b.key, b.version, b.origin, b.origin_version, c.reason
FROM (SELECT key FROM family LIMIT %(keys)s) f
JOIN {schema}.branch b ON b.origin = f.key
JOIN {schema}.change c ON c.key = b.key AND c.version = b.version
ORDER BY b.at, b.key, b.version LIMIT %(limit)s
