-- Gives what is recorded of the namespaces' histories, ages in seconds: how Postgres spells an interval is the role's.
SELECT name, history, extract(epoch FROM max_age)::float8, max_count, changed_by, changed_at
FROM {schema}.retention ORDER BY name
