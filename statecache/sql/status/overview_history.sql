-- Shows what happened lately: the last openings of epochs, taken together where they were one, new conflicts, losses.
SELECT jsonb_build_object(
    'conflicts', (SELECT count(*) FROM {schema}.conflict),
    'new_conflicts', (SELECT count(*) FROM {schema}.conflict WHERE recorded_at > now() - %(new)s::interval),
    'lost', (SELECT coalesce(sum(positions), 0) FROM {schema}.lost),
    'new_lost', (SELECT coalesce(sum(positions), 0) FROM {schema}.lost WHERE reported_at > now() - %(new)s::interval),
    'lost_of', (SELECT coalesce(jsonb_agg(DISTINCT shard), '[]') FROM {schema}.lost
                WHERE reported_at > now() - %(new)s::interval),
    'openings', (SELECT coalesce(jsonb_agg(jsonb_build_array(age, shards, epoch, opened_by) ORDER BY age), '[]') FROM (
            SELECT extract(epoch FROM now() - max(opened_at)) AS age, count(*) AS shards, max(epoch) AS epoch, opened_by
            FROM {schema}.epoch GROUP BY opened_by, replid, date_trunc('minute', opened_at)
            ORDER BY max(opened_at) DESC LIMIT %(openings)s) o))
