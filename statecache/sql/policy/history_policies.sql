-- Gives what is recorded of the namespaces' histories, ages in seconds: how Postgres spells an interval is the role's,
-- and how many digits a float has.
SELECT name, history, extract(epoch FROM max_age), max_count, changed_by, changed_at
FROM {schema}.retention ORDER BY name
