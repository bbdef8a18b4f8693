-- Gives the tables whose rows a restore left out: others have rows that never stand without them.
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
