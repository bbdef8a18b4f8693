-- Takes one parked change into its chain, at the version that it has always had.
INSERT INTO {schema}.change (key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding, schema,
                             writer, actor, reason, gap, at, size, digest, hash)
VALUES (%(key)s, %(version)s, %(change_id)s, %(parent_change_id)s, %(shard)s, %(epoch)s, %(n)s, %(op)s, %(value)s,
        %(encoding)s, %(schema)s, %(writer)s, %(actor)s, %(reason)s, %(gap)s, %(at)s,
        octet_length(%(value)s::bytea), %(digest)s, %(hash)s)
