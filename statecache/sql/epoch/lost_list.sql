-- Lists lost positions, the newest report first, with who opened the epoch; `kept` counts those of them whose changes
-- an old branch has brought back since: they stand in conflict or quarantine.
SELECT l.shard, l.epoch, l.first_n, l.last_n, l.cause, l.positions, k.kept, l.keys, e.opened_by, e.opened_at,
       l.reported_by, l.reported_at
FROM {schema}.lost l
LEFT JOIN {schema}.epoch e ON e.shard = l.shard AND e.epoch = l.epoch
CROSS JOIN LATERAL (SELECT count(*) AS kept FROM (
    SELECT c.n FROM {schema}.conflict c
    WHERE c.shard = l.shard AND c.n BETWEEN l.first_n AND l.last_n AND c.epoch < l.epoch AND l.cause = 'tail'
    UNION
    SELECT q.n FROM {schema}.quarantine q
    WHERE q.shard = l.shard AND q.n BETWEEN l.first_n AND l.last_n AND q.epoch < l.epoch AND l.cause = 'tail') o) k
ORDER BY l.reported_at DESC, l.shard, l.first_n LIMIT %(most)s
