-- Gives the ends of the keys' chains; a quarantined one is broken.
SELECT key, version, change_id, op = 'quarantined' FROM {schema}.state WHERE key = ANY (%(keys)s)
