-- Lets one migration of a schema run at a time, until the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('statecache {schema}', 0))
