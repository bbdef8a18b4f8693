-- This counts the live workers, and the shards that nobody owns.
SELECT (SELECT count(*) FROM {schema}.worker WHERE beat_until > now()),
       (SELECT count(*) FROM {schema}.shard WHERE owner IS NULL OR lease_until < now())
