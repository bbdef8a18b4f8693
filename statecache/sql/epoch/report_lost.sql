-- Records which of these positions have died, and says what became of their changes.
SELECT shard, epoch, n, change_id, key, ended_by, start_n, applied, kept FROM {schema}.report_lost(
    %(shards)s::integer[], %(epochs)s::bigint[], %(ns)s::bigint[], %(change_ids)s::text[], %(keys)s::text[], %(by)s)
