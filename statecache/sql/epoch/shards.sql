-- Gives the rows of the asked shards for whoever opens their gates, with the cluster that they belong to, and
-- whether this role may begin epochs, the policies of namespaces, the time in seconds, and whether changes or epochs stand
-- beyond the row, which were written with another one. Without its index that is not asked: it would read all changes.
SELECT s.shard, s.epoch, s.replid, s.flushed, c.id::text,
       has_function_privilege('{schema}.begin_epoch(integer[], bigint[], text[], bigint[], bigint[], text, text, boolean)',
                              'EXECUTE'), {schema}.enforced_locks(),
       extract(epoch FROM clock_timestamp())::bigint,
       coalesce(CASE WHEN to_regclass('{schema}.change_position') IS NOT NULL
                     THEN (SELECT max(c.n) FROM {schema}.change c WHERE c.shard = s.shard) > s.flushed ELSE false END
                OR (SELECT max(e.epoch) FROM {schema}.epoch e WHERE e.shard = s.shard) > s.epoch, false)
FROM {schema}.shard s CROSS JOIN {schema}.cluster c WHERE s.shard = ANY (%(shards)s) ORDER BY s.shard
