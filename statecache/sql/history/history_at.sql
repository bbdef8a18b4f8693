-- Gives of each key of a group, or of one key, the newest change that is no later than a version, a position and a time,
-- without its value, the newest version that there is, the one that comes next of those that are there, and the hashes
-- of the change and of the one before it; behind the row with the shard's epoch and watermark.
SELECT w.epoch, w.flushed, NULL AS version, NULL AS op, NULL AS change_id, NULL AS parent_change_id, NULL AS n,
       NULL AS at, NULL AS writer, NULL AS actor, NULL AS reason, NULL AS encoding, NULL AS schema, NULL AS size,
       NULL AS digest, NULL AS gap, NULL AS kept, NULL AS key, NULL AS newest,
       NULL AS following, NULL AS hash, NULL AS hash_before
FROM {schema}.shard w WHERE w.shard = %(shard)s
UNION ALL
SELECT c.epoch, NULL, c.version, c.op, c.change_id, c.parent_change_id, c.n, c.at, c.writer, c.actor, c.reason,
       c.encoding, c.schema, coalesce(c.size, octet_length(c.value)), c.digest, c.gap,
       c.op <> 'set' OR c.value IS NOT NULL OR c.packed IS NOT NULL OR (s.version = c.version AND s.op = 'set'),
       s.key, s.version,
       (SELECT h.version FROM {schema}.change h WHERE h.key = s.key AND h.version > coalesce(c.version, 0)
        ORDER BY h.version LIMIT 1),
       c.hash,
       (SELECT h.hash FROM {schema}.change h WHERE h.key = c.key AND h.version = c.version - 1)
FROM {schema}.state s
LEFT JOIN LATERAL (
    SELECT h.key, h.version, h.change_id, h.parent_change_id, h.epoch, h.n, h.op, h.value, h.encoding, h.schema,
           h.writer, h.actor, h.reason, h.gap, h.at, h.packed, h.size, h.digest, h.hash
    FROM {schema}.change h
    WHERE h.key = s.key AND h.version <= %(version)s AND h.n <= %(n)s AND h.at <= %(time)s
    ORDER BY h.version DESC LIMIT 1) c ON true
WHERE s.key = %(key)s OR (%(whole)s AND s.key > %(key)s || '/' AND s.key < %(beyond)s)
ORDER BY key NULLS FIRST
