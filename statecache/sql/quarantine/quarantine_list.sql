-- Gives what is parked, newest first, and where asked what was dropped too: place, change, keys, bytes, why, when.
SELECT shard, epoch, n, change_id, keys, octet_length(entry), sqlstate, error, recorded_at FROM {schema}.quarantine
WHERE sqlstate <> 'dropped' OR %(dropped)s ORDER BY recorded_at DESC, shard, n DESC LIMIT %(limit)s
