-- Gives, for each data set's epoch, the lowest position at which any later epoch of its shard began.
SELECT a.shard, min(e.start_n)
FROM unnest(%(shards)s::integer[], %(epochs)s::bigint[]) AS a (shard, epoch)
JOIN {schema}.epoch e ON e.shard = a.shard AND e.epoch > a.epoch GROUP BY a.shard
