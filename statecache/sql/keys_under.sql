-- This gives the keys that Postgres has a state of under a prefix, deleted ones too, at most so many.
SELECT key FROM {schema}.state WHERE key >= %(prefix)s AND key < %(beyond)s LIMIT %(limit)s
