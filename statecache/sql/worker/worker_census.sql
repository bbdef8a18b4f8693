-- Counts the live workers, the shards that nobody owns, and the live workers that leave no shard to others.
SELECT (SELECT count(*) FROM {schema}.worker WHERE beat_until > now()),
       (SELECT count(*) FROM {schema}.shard WHERE owner IS NULL OR lease_until < now()),
       (SELECT count(*) FROM {schema}.worker WHERE beat_until > now() AND avoids = 0)
