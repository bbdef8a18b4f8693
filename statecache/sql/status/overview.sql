-- Shows how things stand in Postgres, in one document; what could be many rows is counted no further than shown.
-- Who holds a row is shown for shards whose lease has lapsed: nobody can take those; with it the synchronous standbys
-- that it may wait for, and whether it does, where this role may see that. A transaction that was prepared is in no session.
SELECT jsonb_build_object(
    'version', current_setting('server_version'),
    'standby', pg_is_in_recovery(),
    'synchronous_commit', current_setting('synchronous_commit'),
    'encoding', current_setting('server_encoding'),
    'read_only', (SELECT setting = 'on' AND source NOT IN ('user', 'database user') FROM pg_settings
                  WHERE name = 'default_transaction_read_only'),
    'now', extract(epoch FROM clock_timestamp()),
    'shards', (SELECT coalesce(jsonb_agg(jsonb_build_array(
            shard, epoch, replid, flushed, entries, bytes, CASE WHEN lease_until > now() THEN owner END)
            ORDER BY shard), '[]') FROM {schema}.shard),
    'workers', (SELECT coalesce(jsonb_agg(jsonb_build_array(
            w.id, extract(epoch FROM now() - w.started_at), extract(epoch FROM w.beat_until - now()),
            (SELECT count(*) FROM {schema}.shard s WHERE s.owner = w.id AND s.lease_until > now()), w.avoids, w.trouble)
            ORDER BY w.id), '[]') FROM {schema}.worker w),
    'held', (SELECT coalesce(jsonb_agg(jsonb_build_array(
            s.shard, a.pid, a.usename, a.application_name, current_setting('synchronous_standby_names'),
            CASE WHEN a.state IS NOT NULL THEN coalesce(a.wait_event, '') = 'SyncRep' END)
            ORDER BY s.shard), '[]')
            FROM {schema}.shard s
            JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.granted
            LEFT JOIN pg_stat_activity a ON a.pid = l.pid
            WHERE (l.pid IS NULL OR a.pid IS NOT NULL) AND (s.owner IS NULL OR s.lease_until < now())
                  AND coalesce(a.xact_start, '-infinity') < now() - interval '1 second'),
    'quarantined', (SELECT count(*) FROM (
            SELECT 1 FROM {schema}.quarantine WHERE sqlstate <> 'dropped' LIMIT %(most)s) q),
    'conflicts', (SELECT count(*) FROM (SELECT 1 FROM {schema}.conflict LIMIT %(most)s) c))
