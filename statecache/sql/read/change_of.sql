-- Gives one change: what it wrote.
SELECT op, version, parent_change_id, value, encoding, schema FROM {schema}.change
WHERE change_id = %(change_id)s AND key = %(key)s
