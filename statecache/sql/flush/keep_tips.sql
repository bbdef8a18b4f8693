-- Keeps the values of the newest changes of these keys, or of all keys of a group, with the changes, before their states
-- go on: of those that stand in the states alone.
UPDATE {schema}.change c SET value = s.value
FROM unnest(%(keys)s, %(whole)s) AS p (key, whole)
CROSS JOIN LATERAL (
    SELECT key, version, op, value FROM {schema}.state WHERE key = p.key
    UNION ALL
    SELECT key, version, op, value FROM {schema}.state
    WHERE p.whole AND key > p.key || '/' AND key < p.key || '0') s
WHERE c.key = s.key AND c.version = s.version AND s.op = 'set' AND c.op = 'set' AND c.value IS NULL AND c.packed IS NULL
