-- Says what became of changes: in the chain, at which version, or set aside as a conflict.
SELECT a.key, a.change_id, c.version, f.change_id IS NOT NULL
FROM unnest(%(keys)s, %(change_ids)s) AS a (key, change_id)
LEFT JOIN {schema}.change c ON c.change_id = a.change_id AND c.key = a.key
LEFT JOIN {schema}.conflict f ON f.change_id = a.change_id AND f.key = a.key
