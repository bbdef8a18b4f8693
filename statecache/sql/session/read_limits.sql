-- Bounds one transaction that only reads, by the time of a statement alone, and sets the form of times. A page is read in
-- the order of an index: a bitmap would fetch all of a range. It gives, last, the cluster, and whether it is a standby.
SELECT set_config('statement_timeout', %(statement)s, true),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', true) END,
       set_config('DateStyle', 'ISO', true),
       set_config('TimeZone', 'UTC', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('row_security', 'off', true),
       (SELECT id::text FROM {schema}.cluster),
       pg_is_in_recovery()
