-- Gives the ends of the keys' chains; a quarantined one is broken. The hash of each end, or null where it is not reckoned.
SELECT s.key, s.version, s.change_id, s.op = 'quarantined', CASE WHEN c.key IS NULL THEN ''::bytea ELSE c.hash END
FROM {schema}.state s LEFT JOIN {schema}.change c ON c.key = s.key AND c.version = s.version
WHERE s.key = ANY (%(keys)s)
