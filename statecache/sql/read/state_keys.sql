-- Gives those of the asked keys that have a state.
SELECT s.key FROM {schema}.state s WHERE s.key = ANY (%(keys)s)
