-- Gives for each of some prefixes the keys that Postgres has a state of, deleted ones too, at most so many of each.
SELECT p.prefix, s.key
FROM unnest(%(prefixes)s::text[], %(beyond)s::text[]) AS p (prefix, beyond)
CROSS JOIN LATERAL (
    SELECT key FROM {schema}.state WHERE key >= p.prefix AND key < p.beyond LIMIT %(limit)s
) AS s
