-- Gives the last state of each asked key. What it costs Postgres to plan counts: most keys that are asked for are new.
SELECT key, op, value, version, epoch, n, change_id, parent_change_id, encoding, schema, writer, updated_at,
       ARRAY[]::text[] AS recent
FROM {schema}.state WHERE key = ANY (%(keys)s)
