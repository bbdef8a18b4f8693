-- Gives the changes behind a place in a shard's stream of a key and of those below it; behind the row with the shard's epoch
-- and watermark, whose key is ''.
SELECT '' AS key, epoch AS version, flushed AS n FROM {schema}.shard WHERE shard = %(shard)s
UNION ALL
SELECT key, version, n FROM {schema}.change
WHERE shard = %(shard)s AND n > %(after)s AND (
    key = %(key)s OR EXISTS (
        SELECT FROM unnest(%(prefixes)s::text[], %(beyond)s::text[]) AS p (prefix, beyond)
        WHERE key >= p.prefix AND key < p.beyond))
