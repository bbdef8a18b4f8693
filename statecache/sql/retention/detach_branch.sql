-- Has a change that is kept as a delta to another key's be kept by itself, and says whether it is.
SELECT {schema}.detach_branch(%(key)s, %(version)s, %(value)s::bytea)
