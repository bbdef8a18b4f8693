-- Tells which entries of a shard's stream Postgres knows: taken in, set aside or parked, wherever that was, or recorded as
-- lost; but for what was set aside as another branch's, which is no lineage's.
SELECT a.n FROM unnest(%(epochs)s::bigint[], %(ns)s::bigint[], %(change_ids)s::text[]) AS a (epoch, n, change_id)
WHERE EXISTS (SELECT FROM {schema}.change c WHERE c.change_id = a.change_id)
   OR EXISTS (SELECT FROM {schema}.conflict c WHERE c.change_id = a.change_id AND c.cause <> 'branch')
   OR EXISTS (SELECT FROM {schema}.lost_change l WHERE l.change_id = a.change_id)
   OR EXISTS (SELECT FROM {schema}.quarantine q WHERE q.shard = %(shard)s AND q.epoch = a.epoch AND q.n = a.n)
