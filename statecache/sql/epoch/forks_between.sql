-- Gives the changes of a shard that forked after one position and up to another, set aside as conflicts or parked. What
-- was kept of an old primary's branch is none of them: its positions are of another data set, and its change_id may be
-- applied here since.
SELECT key, change_id, n FROM {schema}.conflict WHERE shard = %(shard)s AND n > %(after)s AND n <= %(last)s
  AND cause <> 'branch'
UNION ALL
SELECT unnest(keys), change_id, n FROM {schema}.quarantine
WHERE shard = %(shard)s AND n > %(after)s AND n <= %(last)s AND forked
ORDER BY n LIMIT %(most)s
