-- Gives the indexes of vectors that have refused states, with how many, or have trouble, with what it is, as far as this schema
-- tells, by namespace.
SELECT v.told ->> 'namespace', (v.told ->> 'refused')::bigint, coalesce(v.told ->> 'trouble', '')
FROM (SELECT to_jsonb(one) AS told FROM {schema}.vector_index one) v
WHERE (v.told ->> 'refused')::bigint > 0 OR v.told ->> 'trouble' <> '' ORDER BY 1
