-- Says whether what changes were made from stays as it is until the end of the transaction: whoever removes values from
-- history takes this lock for itself alone, and looks behind that for branches that are kept as deltas to them.
SELECT pg_try_advisory_xact_lock_shared(hashtextextended('statecache origins {schema}', 0))
