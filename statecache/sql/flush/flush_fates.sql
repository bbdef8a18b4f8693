-- Says what became of changes: in the chain, at which version, or a fork, set aside as a conflict or parked.
SELECT a.key, a.change_id, c.version,
       f.change_id IS NOT NULL OR EXISTS (SELECT FROM {schema}.quarantine q
                                          WHERE q.change_id = a.change_id AND q.forked AND a.key = ANY (q.keys))
FROM unnest(%(keys)s, %(change_ids)s) AS a (key, change_id)
LEFT JOIN {schema}.change c ON c.change_id = a.change_id AND c.key = a.key
LEFT JOIN {schema}.conflict f ON f.change_id = a.change_id AND f.key = a.key
