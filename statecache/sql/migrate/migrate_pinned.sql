-- Says whether the schema has its cluster row already, that is, whether there is something to compare with.
SELECT to_regclass('{schema}.cluster') IS NOT NULL
