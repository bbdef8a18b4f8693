-- This gives the rows of the asked shards for whoever opens their gates, with the cluster that they belong to, and
-- whether this role may begin epochs, and the policies of namespaces.
SELECT s.shard, s.epoch, s.replid, s.flushed, c.id::text,
       has_function_privilege('{schema}.begin_epoch(integer[], bigint[], text[], bigint[], bigint[], text, text, boolean)',
                              'EXECUTE'), {schema}.enforced_locks()
FROM {schema}.shard s CROSS JOIN {schema}.cluster c WHERE s.shard = ANY (%(shards)s) ORDER BY s.shard
