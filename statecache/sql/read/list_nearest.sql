-- Gives the live states within bounds whose vectors are the nearest to one, as far as they are indexed, and all those that
-- wait for it, each of these with a distance of null; of them up to one more than `waiting`. Behind it, how many vectors
-- the index gave, and the greatest of their distances.
WITH near AS MATERIALIZED (
    SELECT * FROM {schema}.nearest_keys(%(namespace)s, %(vector)s::real[], %(after)s, %(least)s, %(before)s, %(most)s,
                                        %(where)s::jsonb[], %(without)s::text[], %(limit)s::integer)
), waiting AS (
    SELECT DISTINCT key FROM {schema}.vector_pending
    WHERE key > %(after)s AND key >= %(least)s AND key < %(before)s AND key <= %(most)s LIMIT %(waiting)s::integer + 1
), found AS (
    SELECT key, min(distance) AS distance
    FROM (SELECT * FROM near UNION ALL SELECT key, NULL FROM waiting) AS both_of GROUP BY key
)
SELECT s.key, op, value, version, epoch, n, change_id, parent_change_id, encoding, schema, writer, updated_at,
       ARRAY[]::text[], (SELECT count(*) FROM near), (SELECT max(distance) FROM near), (SELECT count(*) FROM waiting)
FROM found JOIN {schema}.state s ON s.key = found.key
WHERE op IN ('set', 'quarantined')
      AND schema <> ALL (%(without)s::text[])
      AND (cardinality(%(where)s::jsonb[]) = 0 OR op = 'quarantined'
           OR {schema}.json_or_null(value, encoding) @> ALL (%(where)s::jsonb[]))
