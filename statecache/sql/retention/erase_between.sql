-- Gives the changes of a shard behind one place up to another, and those of some keys up to the first of them.
SELECT key, version, n FROM {schema}.change WHERE shard = %(shard)s AND n > %(after)s AND n <= %(last)s
UNION ALL
SELECT key, version, n FROM {schema}.change WHERE key = ANY (%(keys)s::text[]) AND n <= %(after)s
