-- Gives what is kept of the asked versions' values, from their keyframes on, in order; of a branch that began with such a
-- keyframe also where. A value that the history does not keep is the state's, where it is the newest.
SELECT a.at, c.key, c.version, coalesce(c.value, s.value), c.packed, c.keyframe, c.digest, b.origin, b.origin_version
FROM unnest(%(keys)s::text[], %(versions)s::bigint[]) WITH ORDINALITY AS a (key, version, at)
JOIN {schema}.change t ON t.key = a.key AND t.version = a.version
JOIN {schema}.change c ON c.key = t.key AND c.version >= coalesce(t.keyframe, t.version) AND c.version <= t.version
LEFT JOIN {schema}.state s ON c.value IS NULL AND c.packed IS NULL AND s.key = c.key AND s.version = c.version
                              AND s.op <> 'quarantined'
LEFT JOIN {schema}.branch b ON get_byte(c.packed, 0) = 111 AND b.key = c.key AND b.version = c.version
ORDER BY a.at, c.version
