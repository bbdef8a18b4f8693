-- Keeps where a pass stands, and what it did, for the one that is at it, and gives the policy as it is by now, ages in seconds; nothing where
-- another worker has taken it, or the policy lets nothing go any more. A pass that has ended is given back.
UPDATE {schema}.prune_pass p
SET key = %(key)s, version = %(version)s, values = p.values + %(values)s, bytes = p.bytes + %(bytes)s,
    held_until = CASE WHEN %(ended)s THEN now() ELSE now() + %(lease)s END,
    ended_at = CASE WHEN %(ended)s THEN now() END
FROM {schema}.retention r
WHERE p.name = %(name)s AND p.holder = %(holder)s AND r.name = p.name
      AND (r.history = 'latest' OR r.max_age IS NOT NULL OR r.max_count IS NOT NULL)
RETURNING r.history, extract(epoch FROM r.max_age), r.max_count
