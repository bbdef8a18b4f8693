-- Parks a stream entry that cannot be taken in, raw.
INSERT INTO {schema}.quarantine (shard, epoch, n, change_id, keys, entry, sqlstate, error)
VALUES (%(shard)s, %(epoch)s, %(n)s, %(change_id)s, %(keys)s, %(entry)s, %(sqlstate)s, %(error)s)
ON CONFLICT DO NOTHING
