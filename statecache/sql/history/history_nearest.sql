-- Gives the versions of a key next to one, before it and behind it, whose values are kept: that of the newest change is at
-- least in its state.
WITH held AS (
    SELECT version FROM {schema}.change c
    WHERE key = %(key)s AND op = 'set' AND (value IS NOT NULL OR packed IS NOT NULL OR EXISTS (
        SELECT FROM {schema}.state s WHERE s.key = c.key AND s.version = c.version AND s.op = 'set'))
)
(SELECT version FROM held WHERE version <= %(version)s ORDER BY version DESC LIMIT 1)
UNION ALL
(SELECT version FROM held WHERE version > %(version)s ORDER BY version LIMIT 1)
