-- Bounds one transaction that only looks for rows by their keys, by this alone: not by the timeout that a default may
-- have started. What row-level security hides is an error: it would count as not there. It gives, last, which cluster
-- this is, and whether the server is a standby.
SELECT set_config('statement_timeout', %(statement)s, true),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', true) END,
       set_config('row_security', 'off', true),
       (SELECT id::text FROM {schema}.cluster),
       pg_is_in_recovery()
