-- Gives of each asked state its version, and its newest change_ids and positions, as far as versions are contiguous; and
-- who made the last change, and why.
SELECT s.key, s.version,
       ARRAY(SELECT c.change_id || '@' || c.epoch || '-' || c.n
             FROM (SELECT h.version, h.change_id, h.epoch, h.n, row_number() OVER (ORDER BY h.version DESC) AS age
                   FROM {schema}.change h
                   WHERE h.key = s.key AND h.version <= s.version AND h.version > s.version - 6) c
             WHERE c.version = s.version - c.age + 1 ORDER BY c.version DESC) AS recent,
       coalesce(last.actor, ''), coalesce(last.reason, '')
FROM {schema}.state s LEFT JOIN {schema}.change last ON last.key = s.key AND last.version = s.version
WHERE s.key = ANY (%(keys)s)
