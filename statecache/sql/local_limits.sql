-- This bounds one transaction of a worker, and makes its COMMIT wait for the disk whatever the role's default is.
SELECT set_config('statement_timeout', %(statement)s, true),
       set_config('lock_timeout', %(lock)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
                                             ELSE current_setting('synchronous_commit') END, true)
