-- Gives the keys that Postgres holds changes of between two positions of each shard, quarantined ones too.
WITH span AS (
    SELECT * FROM unnest(%(shards)s::integer[], %(after)s::bigint[], %(upto)s::bigint[]) AS s (shard, after, upto)
)
SELECT s.shard, c.key FROM span s JOIN {schema}.change c ON c.shard = s.shard AND c.n > s.after AND c.n <= s.upto
UNION
SELECT s.shard, unnest(q.keys) FROM span s
JOIN {schema}.quarantine q ON q.shard = s.shard AND q.n > s.after AND q.n <= s.upto
