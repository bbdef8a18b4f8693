-- Gives of each key its newest version up to a version and an n, and the change_id of one that is named besides: null
-- where there is no such change.
SELECT a.at, c.version, l.change_id
FROM unnest(%(keys)s, %(versions)s, %(ns)s, %(linked)s) WITH ORDINALITY AS a (key, version, n, linked, at)
LEFT JOIN LATERAL (
    SELECT c.version FROM {schema}.change c WHERE c.key = a.key AND c.version <= a.version AND c.n <= a.n
    ORDER BY c.version DESC LIMIT 1) c ON true
LEFT JOIN {schema}.change l ON l.key = a.key AND l.version = a.linked
