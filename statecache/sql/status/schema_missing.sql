-- Gives what the migrations make and this schema lacks, each by its kind and name.
WITH made (kind, name) AS (
    VALUES ('table', 'branch'), ('table', 'change'), ('table', 'cluster'), ('table', 'conflict'),
           ('table', 'consumer'), ('table', 'epoch'), ('table', 'erasure'), ('table', 'late_change'),
           ('table', 'lock_token'), ('table', 'lost'), ('table', 'lost_change'), ('table', 'migration'),
           ('table', 'namespace'), ('table', 'prune_pass'), ('table', 'quarantine'), ('table', 'retention'),
           ('table', 'shard'), ('table', 'state'), ('table', 'vector_index'), ('table', 'vector_pending'),
           ('table', 'worker'),
           ('primary key', 'branch_pkey'), ('primary key', 'change_pkey'), ('primary key', 'cluster_pkey'),
           ('primary key', 'conflict_pkey'), ('primary key', 'consumer_pkey'), ('primary key', 'epoch_pkey'),
           ('primary key', 'erasure_pkey'), ('primary key', 'late_change_pkey'), ('primary key', 'lock_token_pkey'),
           ('primary key', 'lost_change_pkey'), ('primary key', 'lost_pkey'), ('primary key', 'migration_pkey'),
           ('primary key', 'namespace_pkey'), ('primary key', 'prune_pass_pkey'), ('primary key', 'quarantine_pkey'),
           ('primary key', 'retention_pkey'), ('primary key', 'shard_pkey'), ('primary key', 'state_pkey'),
           ('primary key', 'vector_index_pkey'), ('primary key', 'vector_pending_pkey'), ('primary key', 'worker_pkey'),
           ('index', 'branch_origin'), ('index', 'change_change_id_key_key'), ('index', 'change_position'),
           ('index', 'conflict_position'), ('index', 'lost_change_key'), ('index', 'quarantine_change'),
           ('index', 'quarantine_position'), ('index', 'state_age'), ('index', 'state_end'),
           ('index', 'vector_index_relation_key'), ('index', 'vector_pending_key'),
           ('sequence', 'vector_pending_id_seq'),
           ('view', 'change_view'), ('view', 'state_view'),
           ('function', 'begin_epoch'), ('function', 'create_vector_index'), ('function', 'declare_history'),
           ('function', 'detach_branch'), ('function', 'drop_vector_index'),
           ('function', 'enforced_locks'), ('function', 'erase_history'), ('function', 'fill_vector_index'),
           ('function', 'floats_of'), ('function', 'index_vectors'), ('function', 'json_or_null'),
           ('function', 'keep_consumer'), ('function', 'make_vector_table'), ('function', 'nearest_keys'),
           ('function', 'note_vectors'), ('function', 'report_lost'), ('function', 'set_history'),
           ('function', 'set_locking'), ('function', 'take_consumer'), ('function', 'vector_tables'),
           ('function', 'vectors_of'), ('function', 'vectors_watched'), ('function', 'watch_vectors')
)
SELECT m.kind || ' ' || m.name FROM made m
WHERE NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = %(schema)s AND c.relname = m.name)
      AND NOT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                      WHERE n.nspname = %(schema)s AND p.proname = m.name)
ORDER BY m.kind, m.name
