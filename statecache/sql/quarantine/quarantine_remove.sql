-- Ends the quarantine of an entry whose changes are in their chains.
DELETE FROM {schema}.quarantine WHERE shard = %(shard)s AND epoch = %(epoch)s AND n = %(n)s
