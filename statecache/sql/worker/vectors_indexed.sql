-- Gives whether any namespace's vectors are indexed, and what keeps some of them from being taken in, as far as this schema
-- tells.
SELECT count(*) > 0, string_agg((v.told ->> 'namespace') || ': ' || (v.told ->> 'trouble'), '; ' ORDER BY v.told ->> 'namespace')
FROM (SELECT to_jsonb(one) AS told FROM {schema}.vector_index one) v
