-- Gives keys of which something is left up to these versions, and where: nothing, once they were erased.
SELECT c.key, 'change' FROM unnest(%(keys)s::text[], %(versions)s::bigint[]) AS k (key, version)
JOIN {schema}.change c ON c.key = k.key AND c.version <= k.version
WHERE c.value IS NOT NULL OR c.packed IS NOT NULL OR c.digest IS NOT NULL OR c.hash IS NOT NULL
      OR c.writer <> '' OR c.actor <> '' OR c.reason <> ''
UNION ALL
SELECT c.key, 'conflict' FROM {schema}.conflict c
WHERE c.key = ANY (%(keys)s::text[]) AND (octet_length(c.value) > 0 OR c.writer <> '' OR c.actor <> '' OR c.reason <> '')
UNION ALL
SELECT q.keys[1], 'quarantine' FROM {schema}.quarantine q
WHERE q.keys && %(keys)s::text[] AND octet_length(q.entry) > 1
LIMIT 1
