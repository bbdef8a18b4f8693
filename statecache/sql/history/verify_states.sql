-- Gives a page of keys behind one, and of each that has no change at all, while its state says that it has, the version.
SELECT s.key, CASE WHEN s.op <> 'quarantined' AND NOT EXISTS (SELECT FROM {schema}.change c WHERE c.key = s.key)
              THEN s.version END
FROM (SELECT key, version, op FROM {schema}.state
      WHERE key > %(after)s AND key >= %(prefix)s AND key < %(beyond)s ORDER BY key LIMIT %(rows)s) s
ORDER BY s.key
