-- Makes a quarantined change the tip of its key, so that the chain goes on behind it, with the gap recorded.
INSERT INTO {schema}.state AS s (key, shard, op, value, version, epoch, n, change_id, parent_change_id, encoding,
                                 schema, writer, updated_at)
VALUES (%(key)s, %(shard)s, 'quarantined', '', %(version)s, %(epoch)s, %(n)s, %(change_id)s, %(parent_change_id)s, '',
        '', %(writer)s, %(at)s)
ON CONFLICT (key) DO UPDATE SET
    op = excluded.op, value = excluded.value, version = excluded.version, epoch = excluded.epoch, n = excluded.n,
    change_id = excluded.change_id, parent_change_id = excluded.parent_change_id, encoding = excluded.encoding,
    schema = excluded.schema, writer = excluded.writer, updated_at = excluded.updated_at
WHERE (excluded.epoch, excluded.version) > (s.epoch, s.version)
