-- Gives the changes of runs, in order, without their values: whether each is a delta to the version before, whether it is
-- a delta to another key's, how much is kept of it, and whether another key's change is kept as a delta to it.
SELECT r.key, r.base, c.version, c.n,
       (SELECT x.n FROM {schema}.change x WHERE x.key = c.key AND x.version > c.version ORDER BY x.version LIMIT 1),
       coalesce(get_byte(c.packed, 0) = 100, false), coalesce(get_byte(c.packed, 0) = 111, false),
       coalesce(octet_length(c.packed), octet_length(c.value)), c.keyframe, c.op,
       EXISTS (SELECT FROM {schema}.branch b JOIN {schema}.change o ON o.key = b.key AND o.version = b.version
               WHERE b.origin = c.key AND b.origin_version = c.version AND get_byte(o.packed, 0) = 111)
FROM unnest(%(keys)s, %(bases)s) AS r (key, base)
JOIN {schema}.change c ON c.key = r.key AND c.version >= r.base AND c.version <= r.base + %(most)s
                          AND coalesce(c.keyframe, c.version) = r.base
ORDER BY c.key, c.version
