-- Gives a page of what changes were made from, behind a change of a key; each with whether there is no such change, though
-- none of its shard may have been deleted.
SELECT b.key, b.version, b.origin, b.origin_version,
       coalesce(w.kept_after, 0) = 0
       AND NOT EXISTS (SELECT FROM {schema}.change c WHERE c.key = b.key AND c.version = b.version)
FROM (SELECT key, version, origin, origin_version FROM {schema}.branch
      WHERE (key, version) > (%(after)s, %(after_version)s) AND key >= %(prefix)s AND key < %(beyond)s
      ORDER BY key, version LIMIT %(rows)s) b
LEFT JOIN {schema}.state s ON s.key = b.key
LEFT JOIN {schema}.shard w ON w.shard = s.shard
ORDER BY b.key, b.version
