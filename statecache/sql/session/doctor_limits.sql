-- Bounds one transaction of `statecache doctor`, and sets the form in which times come; whatever else role and database
-- have for defaults is what it looks at. The schema may not be there yet.
SELECT set_config('statement_timeout', %(statement)s, true),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', true) END,
       set_config('DateStyle', 'ISO', true),
       set_config('TimeZone', 'UTC', true)
