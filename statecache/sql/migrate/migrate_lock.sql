-- Lets one migration of a schema run at a time, until the end of the transaction; who waits too long is told so.
SELECT set_config('lock_timeout', '60s', true), set_config('statement_timeout', '0', true),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', true) END,
       pg_advisory_xact_lock(hashtextextended('statecache {schema}', 0))
