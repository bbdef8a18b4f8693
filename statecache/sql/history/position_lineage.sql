-- Gives the lowest n at which an epoch of a shard began that is later than one, and the epoch of the commit at an n.
SELECT (SELECT min(e.start_n) FROM {schema}.epoch e WHERE e.shard = %(shard)s AND e.epoch > %(epoch)s),
       (SELECT c.epoch FROM {schema}.change c WHERE c.shard = %(shard)s AND c.n = %(n)s LIMIT 1)
