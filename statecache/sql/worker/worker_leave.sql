-- Removes the worker's row.
DELETE FROM {schema}.worker WHERE id = %(id)s
