-- Closes the gaps that a change had left before its successors, now that it is in its chain.
UPDATE {schema}.change behind SET gap = false FROM {schema}.change c
WHERE c.change_id = %(change_id)s AND behind.key = c.key AND behind.version = c.version + 1
  AND behind.parent_change_id = c.change_id AND behind.gap
RETURNING behind.key
