-- Keeps changes of another branch, but for those that were applied again in the lineage: they are in their chains. They
-- come in one order, so that several who keep the same at once wait for each other and never in a circle.
INSERT INTO {schema}.conflict (change_id, key, shard, epoch, n, op, version, parent_change_id, value, encoding, schema,
                               writer, actor, reason, at, cause)
SELECT c.change_id, c.key, %(shard)s, c.epoch, c.n, c.op, c.version, c.parent_change_id, c.value, c.encoding, c.schema,
       c.writer, c.actor, c.reason, c.at, %(cause)s
FROM unnest(%(change_id)s::text[], %(key)s::text[], %(epoch)s::bigint[], %(n)s::bigint[], %(op)s::text[],
            %(version)s::bigint[], %(parent_change_id)s::text[], %(value)b::bytea[], %(encoding)s::text[],
            %(schema)s::text[], %(writer)s::text[], %(actor)s::text[], %(reason)s::text[], %(at)s::timestamptz[])
     AS c (change_id, key, epoch, n, op, version, parent_change_id, value, encoding, schema, writer, actor, reason, at)
WHERE NOT EXISTS (SELECT 1 FROM {schema}.change h WHERE h.change_id = c.change_id AND h.key = c.key)
ORDER BY c.change_id, c.key
ON CONFLICT DO NOTHING
