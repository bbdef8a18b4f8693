-- Counts the live states of each namespace by the schema that their values were written as, those under a prefix.
SELECT split_part(key, '/', 1), schema, count(*), sum(octet_length(value))::bigint, min(updated_at), max(updated_at)
FROM {schema}.state
WHERE op = 'set' AND key >= %(prefix)s AND key < %(beyond)s
GROUP BY 1, 2 ORDER BY 1, 2
