-- Counts, for each of the asked keys, the changes that are in conflict and in quarantine instead of in its chain.
SELECT key, 'conflict', count(*) FROM {schema}.conflict WHERE key = ANY (%(keys)s) GROUP BY key
UNION ALL
SELECT k.key, 'quarantine', count(*) FROM {schema}.quarantine q CROSS JOIN unnest(q.keys) AS k (key)
WHERE k.key = ANY (%(keys)s) GROUP BY k.key
