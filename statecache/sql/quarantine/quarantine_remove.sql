-- Ends the quarantine of an entry whose changes are in their chains, and numbers these as late, for readers that have
-- passed its position: by milliseconds, above every number that a restore has taken back. The shard's row is locked.
WITH removed AS (
    DELETE FROM {schema}.quarantine WHERE shard = %(shard)s AND epoch = %(epoch)s AND n = %(n)s
    RETURNING shard, n, change_id
)
INSERT INTO {schema}.late_change (shard, seq, n, key, version)
SELECT r.shard, greatest((SELECT coalesce(max(seq), 0) FROM {schema}.late_change WHERE shard = %(shard)s),
                         (extract(epoch FROM clock_timestamp()) * 1000)::bigint) + row_number() OVER (ORDER BY c.key),
       r.n, c.key, c.version
FROM removed r JOIN {schema}.change c ON c.change_id = r.change_id AND c.shard = r.shard AND c.n = r.n
