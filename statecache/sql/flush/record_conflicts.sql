-- Keeps changes that belong to no lineage.
INSERT INTO {schema}.conflict (change_id, key, shard, epoch, n, op, version, parent_change_id, value, encoding, schema,
                               writer, actor, reason, at, cause)
SELECT c.change_id, c.key, %(shard)s, c.epoch, c.n, c.op, c.version, c.parent_change_id, c.value, c.encoding, c.schema,
       c.writer, c.actor, c.reason, c.at, %(cause)s
FROM unnest(%(change_id)s::text[], %(key)s::text[], %(epoch)s::bigint[], %(n)s::bigint[], %(op)s::text[],
            %(version)s::bigint[], %(parent_change_id)s::text[], %(value)b::bytea[], %(encoding)s::text[],
            %(schema)s::text[], %(writer)s::text[], %(actor)s::text[], %(reason)s::text[], %(at)s::timestamptz[])
     AS c (change_id, key, epoch, n, op, version, parent_change_id, value, encoding, schema, writer, actor, reason, at)
ON CONFLICT DO NOTHING
RETURNING change_id
