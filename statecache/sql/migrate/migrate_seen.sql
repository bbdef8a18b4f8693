-- Gives the numbers of the migrations that were applied.
SELECT number FROM {schema}.migration ORDER BY number
