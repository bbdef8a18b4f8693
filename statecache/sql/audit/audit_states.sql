-- Gives the current states of the asked keys.
SELECT key, op, version, epoch, change_id, value FROM {schema}.state WHERE key = ANY (%(keys)s)
