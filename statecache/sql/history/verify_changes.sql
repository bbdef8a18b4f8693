-- Gives a page of changes in the order of their chains, behind a key's version: what each says, what is kept of its value
-- and of which other key's version that is a delta; whether it was erased, up to which n its shard's changes have hashes
-- and may have been deleted; and its key's state, whose value where it is that of this change. A page ends where the
-- values before are too many bytes.
SELECT key, version, change_id, parent_change_id, epoch, n, op, value, packed, keyframe, size, digest, hash, encoding,
       schema, writer, actor, reason, gap, at, origin, origin_version, erased, hashed, kept_after, state_version,
       state_change_id, state_op, state_value
FROM (SELECT *, sum(weight) OVER (ORDER BY key, version) - weight AS bytes_before
      FROM (SELECT c.*, b.origin, b.origin_version, c.version <= coalesce(e.version, 0) AS erased, w.hashed, w.kept_after,
                   s.version AS state_version, s.change_id AS state_change_id, s.op AS state_op,
                   CASE WHEN s.version = c.version THEN s.value END AS state_value,
                   coalesce(octet_length(c.packed), octet_length(c.value), 0)
                   + CASE WHEN s.version = c.version THEN octet_length(s.value) ELSE 0 END AS weight
            FROM (SELECT * FROM {schema}.change
                  WHERE (key, version) > (%(after)s, %(after_version)s) AND key >= %(prefix)s AND key < %(beyond)s
                  ORDER BY key, version LIMIT %(rows)s) c
            JOIN {schema}.shard w ON w.shard = c.shard
            LEFT JOIN {schema}.state s ON s.key = c.key
            LEFT JOIN {schema}.erasure e ON e.key = c.key
            LEFT JOIN {schema}.branch b ON get_byte(c.packed, 0) = 111 AND b.key = c.key AND b.version = c.version) c) c
WHERE bytes_before < %(bytes)s
ORDER BY key, version
