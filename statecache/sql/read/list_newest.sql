-- Gives the live states within bounds that changed last, newest first, those of which quarantine holds the newest
-- change too. Values are compared with the patterns of `where`, and given only where `values` asks for them.
SELECT key, op, CASE WHEN %(values)s::boolean THEN value ELSE ''::bytea END, version, epoch, n, change_id,
       parent_change_id, encoding, schema, writer, updated_at, ARRAY[]::text[]
FROM {schema}.state
WHERE split_part(key, '/', 1) = split_part(%(prefix)s, '/', 1)
      AND key > %(after)s AND key >= %(least)s AND key < %(before)s AND key <= %(most)s
      AND op IN ('set', 'quarantined')
      AND schema <> ALL (%(without)s::text[])
      AND (cardinality(%(where)s::jsonb[]) = 0 OR op = 'quarantined'
           OR {schema}.json_or_null(value, encoding) @> ALL (%(where)s::jsonb[]))
ORDER BY updated_at DESC, key DESC LIMIT %(limit)s
