-- Bounds one transaction that writes and sets what it relies on, whatever the defaults of role and database are: warnings are
-- sent, times come as ISO and in UTC, a NULL in an array is no text, row-level security hides no rows but is an error,
-- COMMIT waits for the disk, a client that says nothing any more is noticed, and from Postgres 17 on the transaction ends
-- even while the server waits for the rest of a request, which no other timeout bounds. A default's timer runs already,
-- and goes on whatever the new value is: only 0 stops it. It gives, last, the session's process and whether the server is
-- a standby.
SELECT set_config('statement_timeout', %(statement)s, true),
       set_config('lock_timeout', %(lock)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', CASE set_config('transaction_timeout', '0', true)
                            WHEN '0' THEN %(transaction)s::text END, true) END,
       set_config('tcp_keepalives_idle', %(keepalives_idle)s, true),
       set_config('tcp_keepalives_interval', %(keepalives_interval)s, true),
       set_config('tcp_keepalives_count', %(keepalives_count)s, true),
       set_config('tcp_user_timeout', %(silence)s, true),
       set_config('client_min_messages', 'warning', true),
       set_config('DateStyle', 'ISO', true),
       set_config('TimeZone', 'UTC', true),
       set_config('array_nulls', 'on', true),
       set_config('row_security', 'off', true),
       set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
                                             ELSE current_setting('synchronous_commit') END, true),
       pg_backend_pid(),
       pg_is_in_recovery()
