-- Lets one migration of a schema run at a time, until the end of the transaction. What it waits for from then on, others wait
-- for behind it: that is bounded by less than the 2 s of who writes, and by more than the second (deadlock_timeout) after
-- which Postgres ends an autovacuum that is in the way.
SELECT pg_advisory_xact_lock(hashtextextended('statecache {schema}', 0)), set_config('lock_timeout', '1500ms', true)
