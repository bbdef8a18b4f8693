-- Gives the keys that still end with a quarantined change, or with a quarantined one right behind it: with that tip's
-- change, version and parent, and the last change before it that is there, if any.
SELECT s.key, s.change_id, s.version, s.parent_change_id, coalesce(c.op, 'delete'), coalesce(c.encoding, ''),
       coalesce(c.schema, ''), coalesce(c.version, 0)
FROM {schema}.state s
LEFT JOIN LATERAL (SELECT h.op, h.encoding, h.schema, h.version FROM {schema}.change h
                   WHERE h.key = s.key AND h.version < s.version
                   ORDER BY h.version DESC LIMIT 1) c ON true
WHERE s.key = ANY (%(keys)s) AND s.op = 'quarantined' AND %(change_id)s IN (s.change_id, s.parent_change_id)
ORDER BY s.key
