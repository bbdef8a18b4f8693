-- Gives one parked entry, whole.
SELECT shard, epoch, n, change_id, keys, octet_length(entry), sqlstate, error, recorded_at, entry
FROM {schema}.quarantine WHERE shard = %(shard)s AND epoch = %(epoch)s AND n = %(n)s
