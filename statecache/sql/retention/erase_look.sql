-- Gives, of these keys and others below them, what is known: those that have a state, or something that was set aside;
-- changes of other keys that are kept as deltas to theirs, and those that began or were merged from them; entries in
-- quarantine that hold some of a shard's keys, and are not given up yet; and how far the shard is held.
WITH theirs AS (
    SELECT key FROM {schema}.state WHERE key = ANY (%(keys)s)
    UNION
    SELECT s.key FROM unnest(%(prefixes)s::text[], %(beyond)s::text[]) AS p (prefix, beyond)
    CROSS JOIN LATERAL (SELECT key FROM {schema}.state WHERE key >= p.prefix AND key < p.beyond) s
    UNION
    SELECT a.key FROM (
        SELECT key FROM {schema}.conflict WHERE shard = %(shard)s
        UNION SELECT key FROM {schema}.lost_change WHERE shard = %(shard)s
        UNION SELECT unnest(keys) FROM {schema}.quarantine WHERE shard = %(shard)s) a
    WHERE a.key = ANY (%(keys)s) OR EXISTS (
        SELECT FROM unnest(%(prefixes)s::text[], %(beyond)s::text[]) AS p (prefix, beyond)
        WHERE a.key >= p.prefix AND a.key < p.beyond)
)
SELECT 'key' AS what, key, 0::bigint AS version, '' AS other FROM theirs
UNION ALL
SELECT CASE WHEN get_byte(o.packed, 0) = 111 THEN 'delta' ELSE 'branch' END, b.key, b.version, b.origin
FROM {schema}.branch b LEFT JOIN {schema}.change o ON o.key = b.key AND o.version = b.version
WHERE b.origin IN (SELECT key FROM theirs)
UNION ALL
SELECT 'parked', format('%%s:%%s-%%s', q.shard, q.epoch, q.n), 0, k.key
FROM {schema}.quarantine q CROSS JOIN unnest(q.keys) AS k (key)
WHERE octet_length(q.entry) > 1 AND q.sqlstate <> 'dropped' AND q.shard = %(shard)s
UNION ALL
SELECT 'shard', '', flushed, epoch::text FROM {schema}.shard WHERE shard = %(shard)s
