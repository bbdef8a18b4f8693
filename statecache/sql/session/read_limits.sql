-- Bounds one transaction that only reads, and sets the form in which times come, whatever the defaults of role and
-- database are. A page is read in the order of an index, however few rows the server believes a range to have: a bitmap
-- would fetch and sort all of them. It gives, last, whether the server is a standby.
SELECT set_config('statement_timeout', %(statement)s, true),
       set_config('DateStyle', 'ISO', true),
       set_config('TimeZone', 'UTC', true),
       set_config('enable_bitmapscan', 'off', true),
       pg_is_in_recovery()
