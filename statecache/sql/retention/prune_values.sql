-- Gives what is kept of the values of runs, each from a first to a last version, in order, and where other keys' are that
-- they are deltas to.
SELECT c.key, r.first, c.version, c.value, c.packed, c.keyframe, c.digest, b.origin, b.origin_version
FROM unnest(%(keys)s, %(firsts)s, %(lasts)s) AS r (key, first, last)
JOIN {schema}.change c ON c.key = r.key AND c.version >= r.first AND c.version <= r.last
LEFT JOIN {schema}.branch b ON get_byte(c.packed, 0) = 111 AND b.key = c.key AND b.version = c.version
ORDER BY c.key, c.version
