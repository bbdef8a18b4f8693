-- Gives of versions that are missing from the chains of keys of a shard, each from a first to a last one: whether they are
-- lost, in quarantine, or may have been deleted; from which n on the key may have had one; and when the last change of the
-- shard before that was committed.
WITH gap AS (
    SELECT a.key, a.first, a.last, coalesce(b.n, 0) AS behind, coalesce(x.n, 9223372036854775807) AS upto
    FROM unnest(%(keys)s::text[], %(firsts)s::bigint[], %(lasts)s::bigint[]) AS a (key, first, last)
    LEFT JOIN {schema}.change b ON b.key = a.key AND b.version = a.first - 1
    LEFT JOIN {schema}.change x ON x.key = a.key AND x.version = a.last + 1
), explained AS (
    SELECT g.*,
           (SELECT min(greatest(l.first_n, g.behind + 1)) FROM {schema}.lost l
            WHERE l.shard = %(shard)s AND l.cause = 'gap' AND l.last_n > g.behind AND l.first_n < g.upto) AS lost,
           (SELECT min(q.n) FROM {schema}.quarantine q
            WHERE q.shard = %(shard)s AND g.key = ANY (q.keys) AND q.n > g.behind AND q.n < g.upto) AS parked
    FROM gap g
), begun AS (
    SELECT e.*, coalesce(least(e.lost, e.parked), e.behind + 1) AS begins FROM explained e
)
SELECT key, first, last, lost IS NOT NULL, parked IS NOT NULL,
       behind < (SELECT w.kept_after FROM {schema}.shard w WHERE w.shard = %(shard)s), begins,
       (SELECT c.at FROM {schema}.change c WHERE c.shard = %(shard)s AND c.n < begins ORDER BY c.n DESC LIMIT 1)
FROM begun ORDER BY key
