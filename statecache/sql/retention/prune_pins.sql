-- Gives the checkpoints under these prefixes, with what they say and where they were made.
SELECT s.key, s.op, s.schema, s.value, s.n FROM unnest(%(prefixes)s, %(beyond)s) AS p (prefix, beyond)
CROSS JOIN LATERAL (
    SELECT key, op, schema, value, n FROM {schema}.state
    WHERE key >= p.prefix AND key < p.beyond AND op = 'set' AND schema LIKE 'statecache/checkpoint@%%') s
