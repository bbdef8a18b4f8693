-- Gives what is kept of the values of a key's versions between two, from the keyframe of the first on, in order; of a
-- branch that began with one also where. A value that the history does not keep is the state's, where it is the newest.
SELECT c.version, coalesce(c.value, s.value), c.packed, c.keyframe, c.digest, b.origin, b.origin_version
FROM {schema}.change c
LEFT JOIN {schema}.state s ON c.value IS NULL AND c.packed IS NULL AND s.key = c.key AND s.version = c.version
                              AND s.op <> 'quarantined'
LEFT JOIN {schema}.branch b ON get_byte(c.packed, 0) = 111 AND b.key = c.key AND b.version = c.version
WHERE c.key = %(key)s AND c.version <= %(last)s
      AND c.version >= (SELECT coalesce(min(coalesce(f.keyframe, f.version)), %(first)s) FROM {schema}.change f
                        WHERE f.key = %(key)s AND f.version = %(first)s)
ORDER BY c.version
