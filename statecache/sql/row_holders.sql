-- This tells who holds the rows of shards, as far as this role may see: the session that locked a row last stands in it.
SELECT s.shard, a.pid, a.usename, a.application_name, a.state, a.wait_event,
       extract(epoch FROM clock_timestamp() - a.xact_start)
FROM {schema}.shard s JOIN pg_stat_activity a ON a.backend_xid = s.xmax AND a.pid <> pg_backend_pid()
WHERE s.shard = ANY (%(shards)s)
