-- Gives the namespaces whose vectors are indexed, and how many of their states wait for it.
SELECT i.namespace, i.member, i.dims, i.ready, i.relation,
       (SELECT count(*) FROM {schema}.vector_pending p WHERE p.key > i.namespace || '/' AND p.key < i.namespace || '0')
FROM {schema}.vector_index i ORDER BY i.namespace
