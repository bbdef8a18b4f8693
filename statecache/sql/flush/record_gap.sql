-- Records positions that were missing from a shard's stream, and that no states hold whole.
INSERT INTO {schema}.lost (shard, epoch, first_n, last_n, cause, positions, keys, reported_by)
VALUES (%(shard)s, %(epoch)s, %(first)s, %(last)s, 'gap', %(positions)s, %(keys)s, %(by)s)
ON CONFLICT DO NOTHING
