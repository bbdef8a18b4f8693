-- Gives the tables whose rows a restore left out: others have rows that never stand without them. A change above its
-- shard's watermark, or an epoch above the row's, was written with another row; so was one of two commits at one position,
-- for which only the first changes of each shard are looked at: there positions began again.
SELECT 'the rows of state' WHERE EXISTS (SELECT FROM {schema}.change) AND NOT EXISTS (SELECT FROM {schema}.state)
UNION ALL
SELECT 'the rows of change' WHERE EXISTS (SELECT FROM {schema}.state WHERE op <> 'quarantined')
                                  AND NOT EXISTS (SELECT FROM {schema}.change)
UNION ALL
SELECT 'the rows of epoch' WHERE EXISTS (SELECT FROM {schema}.shard WHERE epoch > 0)
                                 AND NOT EXISTS (SELECT FROM {schema}.epoch)
UNION ALL
SELECT 'the rows of change and of state'
WHERE EXISTS (SELECT FROM {schema}.shard s WHERE flushed > 0 AND s.shard NOT IN (
                  SELECT shard FROM {schema}.lost UNION ALL SELECT shard FROM {schema}.conflict
                  UNION ALL SELECT shard FROM {schema}.quarantine))
      AND NOT EXISTS (SELECT FROM {schema}.change) AND NOT EXISTS (SELECT FROM {schema}.state)
UNION ALL
SELECT 'the rows of shard that belong to those of change and epoch'
WHERE EXISTS (SELECT FROM {schema}.shard s WHERE CASE WHEN to_regclass('{schema}.change_position') IS NOT NULL
                     THEN (SELECT max(c.n) FROM {schema}.change c WHERE c.shard = s.shard) > s.flushed
                          OR EXISTS (SELECT FROM (SELECT c.n, c.change_id FROM {schema}.change c WHERE c.shard = s.shard
                                                  ORDER BY c.n LIMIT 32) c
                                     GROUP BY c.n HAVING min(c.change_id) <> max(c.change_id)) ELSE false END
                OR (SELECT max(e.epoch) FROM {schema}.epoch e WHERE e.shard = s.shard) > s.epoch)
