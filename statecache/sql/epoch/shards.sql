-- Gives the rows of the asked shards for whoever opens their gates, with the cluster that they belong to, and
-- whether this role may begin epochs, the policies of namespaces, and the time in seconds.
SELECT s.shard, s.epoch, s.replid, s.flushed, c.id::text,
       has_function_privilege('{schema}.begin_epoch(integer[], bigint[], text[], bigint[], bigint[], text, text, boolean)',
                              'EXECUTE'), {schema}.enforced_locks(),
       extract(epoch FROM clock_timestamp())::bigint
FROM {schema}.shard s CROSS JOIN {schema}.cluster c WHERE s.shard = ANY (%(shards)s) ORDER BY s.shard
