-- Gives a page of what is there under a prefix, by key: the newest change of each state, if it is one of these, with its
-- hash and the one before it.
SELECT c.shard, c.n, 0, 0, c.key, c.op, s.value, c.version, c.epoch, c.change_id, c.parent_change_id, c.encoding,
       c.schema, c.writer, c.actor, c.reason, c.at, true, NULL, NULL, NULL, c.digest, c.hash,
       (SELECT h.hash FROM {schema}.change h WHERE h.key = c.key AND h.version = c.version - 1)
FROM (SELECT key, version, value FROM {schema}.state
      WHERE key > %(after)s AND key >= %(prefix)s AND key < %(beyond)s AND op = ANY (%(ops)s) ORDER BY key LIMIT %(rows)s) s
JOIN {schema}.change c ON c.key = s.key AND c.version = s.version
ORDER BY c.key
