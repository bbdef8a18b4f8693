-- Gives the positions of a shard that Postgres did not take into its chains, between two n; those of another branch
-- have other epochs.
SELECT epoch, n FROM {schema}.quarantine WHERE shard = %(shard)s AND n BETWEEN %(first)s AND %(last)s
UNION
SELECT epoch, n FROM {schema}.conflict WHERE shard = %(shard)s AND n BETWEEN %(first)s AND %(last)s
