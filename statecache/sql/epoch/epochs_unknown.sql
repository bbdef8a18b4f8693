-- Tells of which shards Postgres has not begun the epoch in which the data set was last open, on none of its servers:
-- another Postgres has, or this one has lost it.
SELECT a.shard FROM unnest(%(shards)s::integer[], %(epochs)s::bigint[], %(lineages)s::text[]) AS a (shard, epoch, lineage)
WHERE NOT EXISTS (SELECT FROM {schema}.epoch e WHERE e.shard = a.shard AND e.epoch = a.epoch
                  AND e.replid = ANY (string_to_array(a.lineage, ' ')))
