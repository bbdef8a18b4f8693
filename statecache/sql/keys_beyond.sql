-- This gives the keys that Postgres holds changes of beyond a position, quarantined ones too.
SELECT key FROM {schema}.change WHERE shard = %(shard)s AND n > %(n)s
UNION
SELECT unnest(keys) FROM {schema}.quarantine WHERE shard = %(shard)s AND n > %(n)s
