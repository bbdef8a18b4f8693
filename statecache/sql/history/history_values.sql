-- Gives what is kept of the asked versions' values, from their keyframes on, in order; of a branch that began with such a
-- keyframe also where. A value that the history does not keep is the state's, where it is the newest. What is seldom
-- needed is asked for by subqueries: to plan as many joins takes longer than all the rest.
SELECT a.at, c.key, c.version,
       coalesce(c.value, CASE WHEN c.packed IS NULL THEN (
           SELECT s.value FROM {schema}.state s
           WHERE s.key = c.key AND s.version = c.version AND s.op <> 'quarantined') END),
       c.packed, c.keyframe, c.digest,
       CASE WHEN get_byte(c.packed, 0) = 111 THEN (
           SELECT b.origin FROM {schema}.branch b WHERE b.key = c.key AND b.version = c.version) END,
       CASE WHEN get_byte(c.packed, 0) = 111 THEN (
           SELECT b.origin_version FROM {schema}.branch b WHERE b.key = c.key AND b.version = c.version) END
FROM unnest(%(keys)s::text[], %(versions)s::bigint[]) WITH ORDINALITY AS a (key, version, at)
JOIN {schema}.change c ON c.key = a.key AND c.version <= a.version AND c.version >= (
    SELECT coalesce(t.keyframe, t.version) FROM {schema}.change t WHERE t.key = a.key AND t.version = a.version)
ORDER BY a.at, c.version
