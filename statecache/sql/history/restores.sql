-- Gives the changes of keys, each behind one of its versions, that restored an earlier one: undos, redos and rollbacks.
SELECT c.key, c.version, left(c.reason, 64)
FROM unnest(%(keys)s::text[], %(firsts)s::bigint[]) AS a (key, first)
JOIN {schema}.change c ON c.key = a.key AND c.version > a.first
WHERE c.reason ~ '^(undo|redo|rollback) to [0-9]'
ORDER BY c.key, c.version LIMIT %(limit)s
