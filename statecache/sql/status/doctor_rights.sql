-- Shows what this role may do in the schema; for updates and inserts a right on columns counts.
SELECT jsonb_build_object(
    'usage', (SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %(schema)s),
    'tables', (SELECT jsonb_object_agg(c.relname, jsonb_build_object(
                   'SELECT', has_table_privilege(c.oid, 'SELECT'),
                   'INSERT', has_any_column_privilege(c.oid, 'INSERT'),
                   'UPDATE', has_any_column_privilege(c.oid, 'UPDATE'),
                   'DELETE', has_table_privilege(c.oid, 'DELETE')))
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = %(schema)s AND c.relkind = 'r'),
    'begin_epoch', (SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE'))
                    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                    WHERE n.nspname = %(schema)s AND p.proname = 'begin_epoch'),
    'report_lost', (SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE'))
                    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                    WHERE n.nspname = %(schema)s AND p.proname = 'report_lost'))
