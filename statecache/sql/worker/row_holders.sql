-- Tells who holds the rows of shards: the transaction that locked a row last stands in it, and its lock tells whose
-- it is: no session's, where it was prepared. State, wait event and age are seen by members of that session's role alone.
SELECT s.shard, a.pid, a.usename, a.application_name, a.state, a.wait_event,
       extract(epoch FROM clock_timestamp() - a.xact_start), current_setting('synchronous_standby_names')
FROM {schema}.shard s
JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.granted
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE s.shard = ANY (%(shards)s) AND (l.pid IS NULL OR a.pid <> pg_backend_pid())
