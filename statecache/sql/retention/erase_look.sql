-- Gives, of these keys and others below a group, what is known: the keys with the versions that their states are at;
-- changes of other keys that are kept as deltas to theirs, and those that began or were merged from them; and entries in
-- quarantine that hold some of them and others too.
SELECT 'key' AS what, s.key, s.version, '' AS other FROM {schema}.state s
WHERE s.key = ANY (%(keys)s) OR s.key = ANY (ARRAY(
    SELECT x.key FROM unnest(%(prefixes)s::text[], %(beyond)s::text[]) AS p (prefix, beyond)
    CROSS JOIN LATERAL (SELECT key FROM {schema}.state WHERE key >= p.prefix AND key < p.beyond) x))
UNION ALL
SELECT CASE WHEN get_byte(o.packed, 0) = 111 THEN 'delta' ELSE 'branch' END, b.key, b.version, b.origin
FROM {schema}.branch b LEFT JOIN {schema}.change o ON o.key = b.key AND o.version = b.version
WHERE (b.origin = ANY (%(keys)s) OR EXISTS (
           SELECT FROM unnest(%(prefixes)s::text[], %(beyond)s::text[]) AS p (prefix, beyond)
           WHERE b.origin >= p.prefix AND b.origin < p.beyond))
UNION ALL
SELECT 'parked', format('%%s:%%s-%%s', q.shard, q.epoch, q.n), 0, k.key
FROM {schema}.quarantine q CROSS JOIN unnest(q.keys) AS k (key)
WHERE octet_length(q.entry) > 1 AND q.shard = %(shard)s
