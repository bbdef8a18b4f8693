-- Locks the changes of runs, in the order of their chains, so that nothing builds on them meanwhile.
SELECT c.key, c.version FROM unnest(%(keys)s, %(bases)s) AS r (key, base)
JOIN {schema}.change c ON c.key = r.key AND c.version >= r.base AND c.version <= r.base + %(most)s
                          AND coalesce(c.keyframe, c.version) = r.base
ORDER BY c.key, c.version FOR UPDATE OF c
