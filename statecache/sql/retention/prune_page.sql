-- Gives those values of a page of a namespace's changes that its policy lets go, in the order of their chains; pins are
-- not heard. The page begins at a version of a key, looks at so many changes, and ends, as the first row says, with one
-- where the next begins. A value goes that was replaced before the age, and is not among the newest so many of its key;
-- never that of the key's last change, and none in a shard of which some changes are still to be packed. Changes say the
-- time of Redis: the age has to have passed by that clock, of which the caller says what it shows, and by this one, for
-- either may be ahead. Each comes with its place and that of the change behind it, its run, and whether that is the key's
-- last one.
WITH looked AS MATERIALIZED (
    SELECT key, version, n, op, shard, coalesce(keyframe, version) AS base, digest IS NOT NULL AS known,
           coalesce(octet_length(packed), octet_length(value)) AS bytes,
           lead(at) OVER chain AS next_at
    FROM (SELECT key, version, n, op, shard, keyframe, digest, packed, value, at FROM {schema}.change
          WHERE (key, version) >= (%(key)s, %(version)s) AND key < %(beyond)s
          ORDER BY key, version LIMIT %(rows)s) c
    WINDOW chain AS (PARTITION BY key ORDER BY version)
), replaced AS (
    SELECT * FROM looked
    WHERE op = 'set' AND known AND bytes IS NOT NULL
          AND next_at IS NOT NULL
          AND (%(age)s::interval IS NULL
               OR (next_at < now() - %(age)s::interval AND next_at < %(redis_now)s::timestamptz - %(age)s::interval))
), ends AS MATERIALIZED (
    SELECT k.key, e.version, e.base FROM (SELECT DISTINCT key FROM replaced) k CROSS JOIN LATERAL (
        SELECT c.version, coalesce(c.keyframe, c.version) AS base FROM {schema}.change c WHERE c.key = k.key
        ORDER BY c.version DESC LIMIT 1) e
)
SELECT key, version, NULL AS shard, NULL AS base, (SELECT count(*) FROM looked) AS bytes, NULL AS last_run
FROM (SELECT key, version FROM looked ORDER BY key DESC, version DESC LIMIT 1) l
UNION ALL
(SELECT l.key, l.version, l.shard, l.base, l.bytes, l.base = e.base
 FROM replaced l JOIN ends e ON e.key = l.key JOIN {schema}.shard w ON w.shard = l.shard
 WHERE e.version - l.version >= coalesce(%(count)s::bigint, 1) AND w.hashed >= w.flushed
 ORDER BY l.key, l.version)
