-- Bounds one transaction that only reads, and sets the form in which times come, whatever the defaults of role and
-- database are. It gives, last, whether the server is a standby.
SELECT set_config('statement_timeout', %(statement)s, true),
       set_config('DateStyle', 'ISO', true),
       set_config('TimeZone', 'UTC', true),
       pg_is_in_recovery()
