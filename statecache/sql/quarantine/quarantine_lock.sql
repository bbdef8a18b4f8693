-- Holds off the shard's flusher, which takes the same lock, until the end of the transaction.
SELECT shard FROM {schema}.shard WHERE shard = %(shard)s ORDER BY shard FOR UPDATE
