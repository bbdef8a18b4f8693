-- Shows what decides on how safe a Postgres keeps its commits, as it is for this role and database.
SELECT jsonb_build_object(
    'version', current_setting('server_version'),
    'version_num', current_setting('server_version_num')::integer,
    'settings', (SELECT jsonb_object_agg(name, setting) FROM pg_settings WHERE name = ANY (%(names)s)),
    'standby', pg_is_in_recovery(),
    'role', current_user,
    'encoding', pg_encoding_to_char((SELECT encoding FROM pg_database WHERE datname = current_database())),
    'standbys', (SELECT coalesce(jsonb_agg(jsonb_build_array(application_name, sync_state)), '[]')
                 FROM pg_stat_replication),
    'connections', (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database),
    'now', extract(epoch FROM clock_timestamp()))
