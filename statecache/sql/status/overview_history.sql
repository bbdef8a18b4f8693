-- Shows what happened lately: the last openings of epochs, taken together where they were one, new conflicts, losses.
-- What an old branch has brought back since, into conflict or quarantine, is lost no longer.
WITH lost AS (
    SELECT l.shard, l.reported_at, greatest(l.positions - k.kept, 0) AS positions FROM {schema}.lost l
    CROSS JOIN LATERAL (SELECT count(*) AS kept FROM (
        SELECT c.n FROM {schema}.conflict c
        WHERE c.shard = l.shard AND c.n BETWEEN l.first_n AND l.last_n AND c.epoch < l.epoch AND l.cause = 'tail'
        UNION
        SELECT q.n FROM {schema}.quarantine q
        WHERE q.shard = l.shard AND q.n BETWEEN l.first_n AND l.last_n AND q.epoch < l.epoch AND l.cause = 'tail') o) k
)
SELECT jsonb_build_object(
    'conflicts', (SELECT count(*) FROM {schema}.conflict),
    'new_conflicts', (SELECT count(*) FROM {schema}.conflict WHERE recorded_at > now() - %(new)s::interval),
    'lost', (SELECT coalesce(sum(positions), 0) FROM lost),
    'new_lost', (SELECT coalesce(sum(positions), 0) FROM lost WHERE reported_at > now() - %(new)s::interval),
    'lost_of', (SELECT coalesce(jsonb_agg(DISTINCT shard), '[]') FROM lost
                WHERE positions > 0 AND reported_at > now() - %(new)s::interval),
    'openings', (SELECT coalesce(jsonb_agg(jsonb_build_array(age, shards, epoch, opened_by) ORDER BY age), '[]') FROM (
            SELECT extract(epoch FROM now() - max(opened_at)) AS age, count(*) AS shards, max(epoch) AS epoch, opened_by
            FROM {schema}.epoch GROUP BY opened_by, replid, date_trunc('minute', opened_at)
            ORDER BY max(opened_at) DESC LIMIT %(openings)s) o))
