-- Parks a stream entry that cannot be taken in, raw; one that forked is remembered as such, for what descends from it.
INSERT INTO {schema}.quarantine (shard, epoch, n, change_id, keys, entry, sqlstate, error, forked)
VALUES (%(shard)s, %(epoch)s, %(n)s, %(change_id)s, %(keys)s, %(entry)s, %(sqlstate)s, %(error)s, %(forked)s)
ON CONFLICT DO NOTHING
