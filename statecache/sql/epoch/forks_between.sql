-- Gives the changes of a shard that were set aside as conflicts after one position and up to another.
SELECT key, change_id, n FROM {schema}.conflict WHERE shard = %(shard)s AND n > %(after)s AND n <= %(last)s
ORDER BY n LIMIT %(most)s
