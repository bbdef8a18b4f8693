-- Gives the changes from which others were made: of each key the newest up to a version and an n, whether its value is
-- kept and stays so until the end of the transaction, to how many origins in a row it is kept as a delta, and whether it is
-- certain that none is missing between it and n: the next one is there, or it is the last, and Postgres holds the shard up
-- to n. Whoever lets values go has locked them by then: one of these is passed over, and counts as not kept.
SELECT a.at, c.version, c.change_id, l.digest, coalesce(l.kept, false), d.depth,
       EXISTS (SELECT FROM {schema}.change x WHERE x.key = c.key AND x.version = c.version + 1)
       OR EXISTS (SELECT FROM {schema}.state s JOIN {schema}.shard w ON w.shard = s.shard
                  WHERE s.key = c.key AND s.version = c.version AND s.op <> 'quarantined' AND w.flushed >= a.n)
FROM unnest(%(keys)s, %(versions)s, %(ns)s) WITH ORDINALITY AS a (key, version, n, at)
CROSS JOIN LATERAL (
    SELECT c.key, c.version, c.change_id, c.keyframe FROM {schema}.change c
    WHERE c.key = a.key AND c.version <= a.version AND c.n <= a.n
    ORDER BY c.version DESC LIMIT 1) c
LEFT JOIN LATERAL (
    SELECT o.digest, o.op = 'set' AND (o.value IS NOT NULL OR o.packed IS NOT NULL) AS kept FROM {schema}.change o
    WHERE o.key = c.key AND o.version = c.version FOR SHARE SKIP LOCKED) l ON true
CROSS JOIN LATERAL (
    WITH RECURSIVE way AS (
        SELECT c.key, coalesce(c.keyframe, c.version) AS version, 0 AS depth
        UNION ALL
        SELECT o.key, coalesce(o.keyframe, o.version), w.depth + 1
        FROM way w
        JOIN {schema}.change k ON k.key = w.key AND k.version = w.version AND substring(k.packed, 1, 1) = 'o'::bytea
        JOIN {schema}.branch b ON b.key = k.key AND b.version = k.version
        JOIN {schema}.change o ON o.key = b.origin AND o.version = b.origin_version
        WHERE w.depth < %(depth)s)
    SELECT max(depth) AS depth FROM way) d
