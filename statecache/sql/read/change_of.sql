-- Gives one change: what it wrote, but for its value.
SELECT op, version, parent_change_id, encoding, schema FROM {schema}.change
WHERE change_id = %(change_id)s AND key = %(key)s
