-- Gives the namespaces whose vectors are indexed, whether each index can be searched, how many states wait for it, how many
-- it could not take, and what keeps those that wait from being taken in.
SELECT i.namespace, i.member, i.dims,
       i.ready AND EXISTS (SELECT FROM {schema}.vector_tables() t WHERE t.namespace = i.namespace), i.relation,
       (SELECT count(*) FROM {schema}.vector_pending p WHERE p.key > i.namespace || '/' AND p.key < i.namespace || '0'),
       i.refused, coalesce(i.trouble, '')
FROM {schema}.vector_index i ORDER BY i.namespace
