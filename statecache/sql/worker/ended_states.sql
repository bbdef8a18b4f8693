-- Gives states of these shards whose end has come by then, those that ended first first, beyond a place in that order.
-- Before a migration has made the index, nothing is looked for: it would be the whole table.
SELECT key, right(encoding, 13) FROM {schema}.state
WHERE to_regclass('{schema}.state_end') IS NOT NULL
      AND op = 'set' AND encoding LIKE '%% until %%' AND right(encoding, 13) COLLATE "C" <= %(now)s
      AND (right(encoding, 13) COLLATE "C", key) > (%(after)s, %(after_key)s) AND shard = ANY (%(shards)s::integer[])
ORDER BY right(encoding, 13) COLLATE "C", key LIMIT %(limit)s
