-- Gives the recorded policies of all namespaces.
SELECT name, locking, changed_by, changed_at FROM {schema}.namespace ORDER BY name
