-- Gives of each key its newest change up to an n, with its place among those that are asked for.
SELECT a.at, c.version, c.change_id
FROM unnest(%(keys)s::text[], %(ns)s::bigint[]) WITH ORDINALITY AS a (key, n, at)
CROSS JOIN LATERAL (
    SELECT c.version, c.change_id FROM {schema}.change c WHERE c.key = a.key AND c.n <= a.n
    ORDER BY c.version DESC LIMIT 1) c
