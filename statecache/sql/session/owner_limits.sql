-- Sets what a transaction of the schema's owner relies on: others' locks are waited for a minute, and what it does takes
-- as long as it takes. What row-level security hides is an error: it would be left out.
SELECT set_config('lock_timeout', '60s', true),
       set_config('statement_timeout', '0', true),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', true) END,
       set_config('row_security', 'off', true)
