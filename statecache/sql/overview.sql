-- This shows how things stand in Postgres, in one document; what could be many rows is counted no further than shown.
SELECT jsonb_build_object(
    'version', current_setting('server_version'),
    'standby', pg_is_in_recovery(),
    'synchronous_commit', current_setting('synchronous_commit'),
    'now', extract(epoch FROM clock_timestamp()),
    'shards', (SELECT coalesce(jsonb_agg(jsonb_build_array(
            shard, epoch, replid, flushed, entries, bytes, CASE WHEN lease_until > now() THEN owner END)
            ORDER BY shard), '[]') FROM {schema}.shard),
    'workers', (SELECT coalesce(jsonb_agg(jsonb_build_array(
            w.id, extract(epoch FROM now() - w.started_at), extract(epoch FROM w.beat_until - now()),
            (SELECT count(*) FROM {schema}.shard s WHERE s.owner = w.id AND s.lease_until > now()))
            ORDER BY w.id), '[]') FROM {schema}.worker w),
    'quarantined', (SELECT count(*) FROM (
            SELECT 1 FROM {schema}.quarantine WHERE sqlstate <> 'dropped' LIMIT %(most)s) q),
    'conflicts', (SELECT count(*) FROM (SELECT 1 FROM {schema}.conflict LIMIT %(most)s) c))
