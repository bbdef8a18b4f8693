-- Gives those of the asked keys of which changes are lost.
SELECT l.key FROM {schema}.lost_change l WHERE l.key = ANY (%(keys)s)
