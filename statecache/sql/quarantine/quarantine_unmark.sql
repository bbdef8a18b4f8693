-- Gives the states that a change's quarantine had marked what the change says, now that it is in its chain.
UPDATE {schema}.state s
SET op = c.op, value = c.value, encoding = c.encoding, schema = c.schema, writer = c.writer, updated_at = c.at
FROM {schema}.change c
WHERE c.change_id = %(change_id)s AND s.key = c.key AND s.version = c.version AND s.change_id = c.change_id
  AND s.op = 'quarantined'
RETURNING s.key
