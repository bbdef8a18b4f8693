-- Records from which changes of other keys these were made.
INSERT INTO {schema}.branch (key, version, origin, origin_version, origin_change_id, at)
SELECT * FROM unnest(%(key)s, %(version)s, %(origin)s, %(origin_version)s, %(origin_change_id)s, %(at)s)
ON CONFLICT DO NOTHING
