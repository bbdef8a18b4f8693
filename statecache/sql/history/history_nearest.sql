-- Gives the versions of a key next to one, before it and behind it, whose values are kept.
(SELECT version FROM {schema}.change
 WHERE key = %(key)s AND version <= %(version)s AND op = 'set' AND (value IS NOT NULL OR packed IS NOT NULL)
 ORDER BY version DESC LIMIT 1)
UNION ALL
(SELECT version FROM {schema}.change
 WHERE key = %(key)s AND version > %(version)s AND op = 'set' AND (value IS NOT NULL OR packed IS NOT NULL)
 ORDER BY version LIMIT 1)
