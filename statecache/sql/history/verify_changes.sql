-- Gives a page of changes in the order of their chains, behind a key's version: what each says, what is kept of its value
-- and from which other key's version it is recorded to be made; whether it was erased, up to which n its shard's changes
-- have hashes and may have been deleted; its key's state, whose value where it is that of this change; whether anything
-- is recorded as lost or parked where a gap says that versions are missing, and whether all changes of its commit say the
-- same time; and when that was read. A page ends where the values before are too many bytes: as they are kept, or, for they
-- take time to be made again, a 32nd of what they come to.
SELECT key, version, change_id, parent_change_id, epoch, n, op, value, packed, keyframe, size, digest, hash, encoding,
       schema, writer, actor, reason, gap, at, shard, erased, hashed, kept_after,
       origin, origin_version, origin_change_id, linked_at,
       state_version, state_change_id, state_op, state_value, state_shard, state_epoch, state_n, state_parent,
       state_encoding, state_schema, state_writer, state_at,
       NOT gap OR EXISTS (SELECT FROM {schema}.lost l
                          WHERE l.shard = c.shard AND l.last_n > behind AND l.first_n < c.n)
               OR EXISTS (SELECT FROM {schema}.quarantine q
                          WHERE (c.key = ANY (q.keys) AND q.shard <> c.shard)
                                OR (q.shard = c.shard AND q.n > behind AND q.n < c.n
                                    AND (c.key = ANY (q.keys) OR q.keys = '{}'))),
       NOT EXISTS (SELECT FROM {schema}.change o WHERE o.shard = c.shard AND o.n = c.n AND o.at <> c.at),
       now()
FROM (SELECT *, sum(weight) OVER (ORDER BY key, version) - weight AS bytes_before
      FROM (SELECT c.*, c.version <= coalesce(e.version, 0) AS erased, coalesce(w.hashed, 0) AS hashed,
                   coalesce(w.kept_after, 0) AS kept_after, b.origin, b.origin_version, b.origin_change_id,
                   b.at AS linked_at,
                   s.version AS state_version, s.change_id AS state_change_id, s.op AS state_op,
                   CASE WHEN s.version = c.version THEN s.value END AS state_value, s.shard AS state_shard,
                   s.epoch AS state_epoch, s.n AS state_n, s.parent_change_id AS state_parent,
                   s.encoding AS state_encoding, s.schema AS state_schema, s.writer AS state_writer,
                   s.updated_at AS state_at,
                   CASE WHEN c.gap THEN coalesce((
                       SELECT h.n FROM {schema}.change h WHERE h.key = c.key AND h.version < c.version
                       ORDER BY h.version DESC LIMIT 1), 0) END AS behind,
                   greatest(coalesce(octet_length(c.packed), octet_length(c.value), 0), coalesce(c.size, 0) / 32)
                   + CASE WHEN s.version = c.version THEN octet_length(s.value) ELSE 0 END AS weight
            FROM (SELECT key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding, schema,
                         writer, actor, reason, gap, at, packed, keyframe, size, digest, hash
                  FROM {schema}.change
                  WHERE (key, version) > (%(after)s, %(after_version)s) AND key >= %(prefix)s AND key < %(beyond)s
                  ORDER BY key, version LIMIT %(rows)s) c
            LEFT JOIN {schema}.shard w ON w.shard = c.shard
            LEFT JOIN {schema}.state s ON s.key = c.key
            LEFT JOIN {schema}.erasure e ON e.key = c.key
            LEFT JOIN {schema}.branch b ON b.key = c.key AND b.version = c.version) c) c
WHERE bytes_before < %(bytes)s
ORDER BY key, version
