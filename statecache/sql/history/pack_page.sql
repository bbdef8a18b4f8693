-- Gives the changes of a shard that have no hash, from the place up to which all have theirs to another, which stands in
-- each row behind that one: so many rows were looked at, or the values there are so many bytes, and no commit is cut.
-- Each comes with the change_id and the hash of the version before it; what was erased has none, ever.
WITH from_n AS MATERIALIZED (
    SELECT hashed, flushed FROM {schema}.shard WHERE shard = %(shard)s
), looked AS MATERIALIZED (
    SELECT c.key, c.version, c.n, c.hash IS NULL AND (c.digest IS NOT NULL OR c.value IS NOT NULL) AS lacks,
           CASE WHEN c.hash IS NULL AND c.digest IS NULL THEN coalesce(octet_length(c.value), 0) ELSE 0 END AS weight
    FROM from_n f CROSS JOIN LATERAL (
        SELECT c.key, c.version, c.n, c.hash, c.digest, c.value FROM {schema}.change c
        WHERE c.shard = %(shard)s AND c.n > f.hashed AND c.n <= f.flushed
        ORDER BY c.n LIMIT %(rows)s) c
), weighed AS (
    SELECT n, sum(weight) OVER (ORDER BY n RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE GROUP) AS before
    FROM looked
), cut AS (
    SELECT least(min(n) FILTER (WHERE before >= %(bytes)s), CASE WHEN count(*) = %(rows)s THEN max(n) END) - 1 AS n
    FROM weighed
)
SELECT f.hashed, coalesce(cut.n, f.flushed), c.key, c.version, c.change_id, c.parent_change_id, c.epoch, c.n, c.op,
       CASE WHEN c.digest IS NULL THEN c.value END, c.encoding, c.schema, c.writer, c.actor, c.reason, c.gap, c.at,
       c.digest, p.change_id, p.hash
FROM from_n f CROSS JOIN cut
LEFT JOIN looked l ON l.lacks AND l.n <= coalesce(cut.n, f.flushed)
LEFT JOIN {schema}.change c ON c.key = l.key AND c.version = l.version
LEFT JOIN {schema}.change p ON p.key = c.key AND p.version = c.version - 1
ORDER BY c.n, c.key
