-- Pins, at first use, what every client and worker must agree on.
INSERT INTO {schema}.cluster (shards, hash, group_rule, prefix, min_code)
VALUES (%(shards)s, %(hash)s, %(group_rule)s, %(prefix)s, %(min_code)s)
ON CONFLICT DO NOTHING
RETURNING id::text
