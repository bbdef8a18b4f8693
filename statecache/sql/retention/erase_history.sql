-- Blanks what is kept of keys up to these versions; gives for each place how many rows that were, and bytes of values.
SELECT place, rows, bytes
FROM {schema}.erase_history(%(keys)s::text[], %(versions)s::bigint[], %(by)s::text, %(most)s::integer)
