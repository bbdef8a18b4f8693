-- Gives what is recorded of the namespaces' histories.
SELECT name, history, max_age, max_count, changed_by, changed_at FROM {schema}.retention ORDER BY name
