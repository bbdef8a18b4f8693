-- Gives the live states within bounds whose vectors are the nearest to one, as far as they are indexed, and those that wait
-- for it, of them up to one more than `waiting`. With each comes how many vectors the index gave, the greatest of their
-- distances, which is no float, for how many digits those have is the role's, and how many states wait; where there is
-- no state, they come alone.
WITH near AS MATERIALIZED (
    SELECT * FROM {schema}.nearest_keys(%(namespace)s, %(vector)s::real[], %(after)s, %(least)s, %(before)s, %(most)s,
                                        %(where)s::jsonb[], %(without)s::text[], %(limit)s::integer)
), waiting AS (
    SELECT DISTINCT key FROM {schema}.vector_pending
    WHERE key > %(after)s AND key >= %(least)s AND key < %(before)s AND key <= %(most)s LIMIT %(waiting)s::integer + 1
), found AS (
    SELECT key FROM near UNION SELECT key FROM waiting
)
SELECT s.*, (SELECT count(*) FROM near), (SELECT max(distance)::numeric FROM near), (SELECT count(*) FROM waiting)
FROM (SELECT) AS one LEFT JOIN (found CROSS JOIN LATERAL (
    SELECT key, op, value, version, epoch, n, change_id, parent_change_id, encoding, schema, writer, updated_at,
           ARRAY[]::text[]
    FROM {schema}.state
    WHERE state.key = found.key AND op IN ('set', 'quarantined')
          AND schema <> ALL (%(without)s::text[])
          AND (cardinality(%(where)s::jsonb[]) = 0 OR op = 'quarantined'
               OR {schema}.json_or_null(value, encoding) @> ALL (%(where)s::jsonb[]))
    LIMIT 1
) AS s) ON true
