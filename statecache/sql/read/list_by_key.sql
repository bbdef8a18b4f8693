-- Gives a page of live states within bounds, by key, those of which quarantine holds the newest change
-- too. Values are compared with the patterns of `where`, and given only where `values` asks for them: then the page
-- ends with the state with which they come to `bytes`.
SELECT key, op, CASE WHEN %(values)s::boolean THEN value ELSE ''::bytea END, version, epoch, n, change_id,
       parent_change_id, encoding, schema, writer, updated_at, ARRAY[]::text[]
FROM (
    SELECT *, sum(octet_length(value)) OVER up_to_it - octet_length(value) AS bytes_before
    FROM (
        SELECT key, op, value, version, epoch, n, change_id, parent_change_id, encoding, schema, writer, updated_at
        FROM {schema}.state
        WHERE key > %(after)s AND key >= %(least)s AND key < %(before)s AND key <= %(most)s
              AND op IN ('set', 'quarantined')
              AND schema <> ALL (%(without)s::text[])
              AND (cardinality(%(where)s::jsonb[]) = 0 OR op = 'quarantined'
                   OR {schema}.json_or_null(value, encoding) @> ALL (%(where)s::jsonb[]))
        ORDER BY key LIMIT %(limit)s
    ) AS found
    WINDOW up_to_it AS (ORDER BY key ROWS UNBOUNDED PRECEDING)
) AS page
WHERE NOT %(values)s::boolean OR bytes_before < %(bytes)s
ORDER BY key
