-- Shows what this role may not do in the schema: of each table the columns that it may not select, insert or update (the
-- table's name where it may not delete, or where row-level security hides rows), and of each function whether it may run
-- it. Of a table it shows as well from which owners of functions, as which these run, row-level security hides rows.
SELECT jsonb_build_object(
    'usage', (SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %(schema)s),
    'tables', (SELECT jsonb_object_agg(c.relname, (
                   SELECT jsonb_build_object(
                       'SELECT', coalesce(jsonb_agg(a.attname ORDER BY a.attnum)
                           FILTER (WHERE NOT has_column_privilege(c.oid, a.attnum, 'SELECT')), '[]'),
                       'INSERT', coalesce(jsonb_agg(a.attname ORDER BY a.attnum)
                           FILTER (WHERE NOT has_column_privilege(c.oid, a.attnum, 'INSERT')), '[]'),
                       'UPDATE', coalesce(jsonb_agg(a.attname ORDER BY a.attnum)
                           FILTER (WHERE NOT has_column_privilege(c.oid, a.attnum, 'UPDATE')), '[]'),
                       'DELETE', CASE WHEN has_table_privilege(c.oid, 'DELETE') THEN '[]'::jsonb
                                      ELSE jsonb_build_array(c.relname) END,
                       'ROWS', CASE WHEN row_security_active(c.oid) THEN jsonb_build_array(c.relname)
                                    ELSE '[]'::jsonb END,
                       'OWNERS', (SELECT coalesce(jsonb_agg(DISTINCT r.rolname), '[]')
                                  FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner
                                  WHERE p.pronamespace = n.oid AND p.prosecdef AND c.relrowsecurity
                                        AND NOT (r.rolsuper OR r.rolbypassrls)
                                        AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE'))))
                   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = %(schema)s AND c.relkind = 'r'),
    'functions', (SELECT jsonb_object_agg(name, may_run)
                  FROM (SELECT p.proname AS name, bool_and(has_function_privilege(p.oid, 'EXECUTE')) AS may_run
                        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                        WHERE n.nspname = %(schema)s GROUP BY p.proname) AS f))
