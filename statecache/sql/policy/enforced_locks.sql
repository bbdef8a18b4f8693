-- Gives the recorded policies as each shard's meta has them: their revision, then the namespaces whose locks are enforced.
SELECT {schema}.enforced_locks()
