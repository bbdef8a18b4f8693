-- Bounds one transaction that only reads, by the time of a statement alone, and sets the form in which times come, whatever
-- the defaults of role and database are: the timeout of a transaction, in Postgres from 17 on, may run already. A page is
-- read in the order of an index, however few rows the server believes a range to have: a bitmap would fetch and sort all
-- of them. It gives, last, which cluster this is and whether the server is a standby.
SELECT set_config('statement_timeout', %(statement)s, true),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', true) END,
       set_config('DateStyle', 'ISO', true),
       set_config('TimeZone', 'UTC', true),
       set_config('enable_bitmapscan', 'off', true),
       (SELECT id::text FROM {schema}.cluster),
       pg_is_in_recovery()
