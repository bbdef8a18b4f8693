-- Gives the newest fencing token that a flushed commit has shown of each of these locks.
SELECT key, epoch, count FROM {schema}.lock_token WHERE key = ANY (%(keys)s)
