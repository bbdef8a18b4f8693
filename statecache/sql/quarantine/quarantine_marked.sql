-- Gives the keys that still end with a quarantined change, with the last change of each before it, if any.
SELECT s.key, coalesce(c.op, 'delete'), coalesce(c.encoding, ''), coalesce(c.schema, ''), coalesce(c.version, 0)
FROM {schema}.state s
LEFT JOIN LATERAL (SELECT h.* FROM {schema}.change h WHERE h.key = s.key AND h.version < s.version
                   ORDER BY h.version DESC LIMIT 1) c ON true
WHERE s.key = ANY (%(keys)s) AND s.op = 'quarantined' AND s.change_id = %(change_id)s ORDER BY s.key
