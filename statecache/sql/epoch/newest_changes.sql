-- Gives the newest changes of each of these shards.
SELECT s.shard, c.key, c.version, c.change_id, c.epoch, c.n
FROM unnest(%(shards)s::integer[]) AS s (shard) CROSS JOIN LATERAL (
    SELECT c.key, c.version, c.change_id, c.epoch, c.n FROM {schema}.change c
    WHERE c.shard = s.shard ORDER BY c.n DESC LIMIT %(most)s) c
