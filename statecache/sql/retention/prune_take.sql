-- Takes a namespace that is due, where its policy lets values go and nobody else is at it, and gives where its pass stands
-- and the policy, ages in seconds. A pass that somebody left is gone on with; a new one begins so long after the last one's end.
WITH due AS (
    SELECT r.name FROM {schema}.retention r LEFT JOIN {schema}.prune_pass p ON p.name = r.name
    WHERE (r.history = 'latest' OR r.max_age IS NOT NULL OR r.max_count IS NOT NULL)
          AND (p.name IS NULL OR (p.held_until <= now() AND (p.ended_at IS NULL OR p.ended_at + %(every)s <= now())))
    ORDER BY p.ended_at NULLS FIRST, r.name LIMIT 1
), taken AS (
    INSERT INTO {schema}.prune_pass AS p (name, holder, held_until)
    SELECT name, %(holder)s, now() + %(lease)s FROM due
    ON CONFLICT (name) DO UPDATE SET
        holder = excluded.holder, held_until = excluded.held_until, ended_at = NULL,
        key = CASE WHEN p.ended_at IS NULL THEN p.key ELSE '' END,
        version = CASE WHEN p.ended_at IS NULL THEN p.version ELSE 0 END,
        begun_at = CASE WHEN p.ended_at IS NULL THEN p.begun_at ELSE now() END,
        values = CASE WHEN p.ended_at IS NULL THEN p.values ELSE 0 END,
        bytes = CASE WHEN p.ended_at IS NULL THEN p.bytes ELSE 0 END
    WHERE p.held_until <= now()
    RETURNING p.name, p.key, p.version
)
SELECT t.name, t.key, t.version, r.history, extract(epoch FROM r.max_age), r.max_count
FROM taken t JOIN {schema}.retention r ON r.name = t.name
