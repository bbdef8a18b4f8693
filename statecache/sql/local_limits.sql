-- This bounds one transaction and sets what it relies on, whatever the defaults of role and database are: warnings are
-- sent, times come as ISO and in UTC, COMMIT waits for the disk. It gives, last, whether the server is a standby.
SELECT set_config('statement_timeout', %(statement)s, true),
       set_config('lock_timeout', %(lock)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('client_min_messages', 'warning', true),
       set_config('DateStyle', 'ISO', true),
       set_config('TimeZone', 'UTC', true),
       set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
                                             ELSE current_setting('synchronous_commit') END, true),
       pg_is_in_recovery()
