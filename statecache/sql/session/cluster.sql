-- Gives what every client and worker must agree on.
SELECT id::text, shards, hash, group_rule, prefix, min_code FROM {schema}.cluster
