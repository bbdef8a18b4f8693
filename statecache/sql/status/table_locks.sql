-- Tells which sessions keep readers or writers from tables of the schema: they have locked them as a whole, or wait to,
-- and then behind whom. It reads no table of the schema, so that it waits for none of those locks.
SELECT l.pid, a.usename, a.application_name, l.mode, extract(epoch FROM clock_timestamp() - a.xact_start),
       string_agg(c.relname, ', ' ORDER BY c.relname),
       CASE WHEN NOT l.granted THEN (
            SELECT string_agg('pid ' || b.pid || ' (' || b.usename || ' with '
                              || coalesce(nullif(b.application_name, ''), 'no application_name') || ')', ', ')
            FROM pg_stat_activity b WHERE b.pid = ANY (pg_blocking_pids(l.pid))) END
FROM pg_locks l
JOIN pg_class c ON c.oid = l.relation AND c.relkind = 'r'
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = %(schema)s
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
      AND coalesce(a.xact_start, '-infinity') < now() - interval '1 second'
GROUP BY l.pid, a.usename, a.application_name, l.mode, a.xact_start, l.granted
ORDER BY l.granted DESC, a.xact_start, l.pid
