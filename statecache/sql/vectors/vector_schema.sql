-- Gives the schema that pgvector is in and this role, where it may make indexes of vectors, but may not use that schema.
SELECT quote_ident(n.nspname), quote_ident(current_user)
FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'vector' AND NOT has_schema_privilege(n.oid, 'USAGE')
      AND has_function_privilege('{schema}.create_vector_index(text, text, integer)', 'EXECUTE')
