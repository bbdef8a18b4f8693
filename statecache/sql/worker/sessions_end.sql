-- Ends sessions that hold rows of shards and wait for a worker that is not there any more: their owner's lease has
-- lapsed, or it is the caller, who has another session by now. Only sessions of the caller's own role are ended. A
-- pooler may have added the worker's address to its name.
WITH gone AS MATERIALIZED (
    SELECT a.pid, array_agg(s.shard ORDER BY s.shard) AS shards, min(a.application_name) AS name
    FROM {schema}.shard s
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.granted
    JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE (s.lease_until < now() OR s.owner = %(owner)s) AND a.pid <> pg_backend_pid()
          AND starts_with(a.application_name || ' - ', 'statecache worker ' || right(s.owner, 8) || ' - ')
          AND a.wait_event = 'ClientRead' AND pg_has_role(a.usesysid, 'MEMBER')
    GROUP BY a.pid
)
SELECT pid, shards, name FROM gone WHERE pg_terminate_backend(pid)
