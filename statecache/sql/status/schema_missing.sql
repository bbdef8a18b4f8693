-- Gives what the migrations make and this schema lacks, each by its kind and name; of a key and an index also what makes
-- it again. Another one of the same columns will do: a person may have renamed or replaced it. A table that is not logged is
-- empty after a crash.
WITH made (kind, name) AS (
    VALUES ('table', 'branch'), ('table', 'change'), ('table', 'cluster'), ('table', 'conflict'),
           ('table', 'consumer'), ('table', 'epoch'), ('table', 'erasure'), ('table', 'late_change'),
           ('table', 'lock_token'), ('table', 'lost'), ('table', 'lost_change'), ('table', 'migration'),
           ('table', 'namespace'), ('table', 'prune_pass'), ('table', 'quarantine'), ('table', 'retention'),
           ('table', 'shard'), ('table', 'state'), ('table', 'vector_index'), ('table', 'vector_pending'),
           ('table', 'worker'),
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
), indexed (kind, name, relation, columns, condition) AS (
    VALUES ('primary key', 'branch_pkey', 'branch', 'key, version', ''),
           ('primary key', 'change_pkey', 'change', 'key, version', ''),
           ('primary key', 'cluster_pkey', 'cluster', 'one', ''),
           ('primary key', 'conflict_pkey', 'conflict', 'change_id, key', ''),
           ('primary key', 'consumer_pkey', 'consumer', 'name', ''),
           ('primary key', 'epoch_pkey', 'epoch', 'shard, epoch', ''),
           ('primary key', 'erasure_pkey', 'erasure', 'key', ''),
           ('primary key', 'late_change_pkey', 'late_change', 'shard, seq', ''),
           ('primary key', 'lock_token_pkey', 'lock_token', 'key', ''),
           ('primary key', 'lost_change_pkey', 'lost_change', 'change_id, key', ''),
           ('primary key', 'lost_pkey', 'lost', 'shard, epoch, first_n, cause', ''),
           ('primary key', 'migration_pkey', 'migration', 'number', ''),
           ('primary key', 'namespace_pkey', 'namespace', 'name', ''),
           ('primary key', 'prune_pass_pkey', 'prune_pass', 'name', ''),
           ('primary key', 'quarantine_pkey', 'quarantine', 'shard, epoch, n', ''),
           ('primary key', 'retention_pkey', 'retention', 'name', ''),
           ('primary key', 'shard_pkey', 'shard', 'shard', ''), ('primary key', 'state_pkey', 'state', 'key', ''),
           ('primary key', 'vector_index_pkey', 'vector_index', 'namespace', ''),
           ('primary key', 'vector_pending_pkey', 'vector_pending', 'id', ''),
           ('primary key', 'worker_pkey', 'worker', 'id', ''),
           ('unique key', 'change_change_id_key_key', 'change', 'change_id, key', ''),
           ('unique key', 'vector_index_relation_key', 'vector_index', 'relation', ''),
           ('index', 'branch_origin', 'branch', 'origin, origin_version', ''),
           ('index', 'change_position', 'change', 'shard, n', ''),
           ('index', 'conflict_position', 'conflict', 'shard, n', ''),
           ('index', 'lost_change_key', 'lost_change', 'key', ''),
           ('index', 'quarantine_change', 'quarantine', 'change_id', ''),
           ('index', 'quarantine_position', 'quarantine', 'shard, n', ''),
           ('index', 'state_age', 'state', 'split_part(key, ''/'', 1), updated_at, key', ''),
           ('index', 'state_end', 'state', 'right(encoding, 13) COLLATE "C"',
            ' WHERE op = ''set'' AND encoding LIKE ''%% until %%'''),
           ('index', 'vector_pending_key', 'vector_pending', 'key', '')
), there AS (
    SELECT t.relname AS relation, i.indisunique AS alone, string_agg(a.attname, ', ' ORDER BY k.place) AS columns
    FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace
    CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, place)
    JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.number
    WHERE n.nspname = %(schema)s AND k.place <= i.indnkeyatts AND i.indisvalid AND i.indimmediate
          AND i.indpred IS NULL AND i.indexprs IS NULL
    GROUP BY i.indexrelid, t.relname, i.indisunique
)
SELECT m.kind || ' ' || m.name, '' FROM made m
WHERE NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = %(schema)s AND c.relname = m.name)
      AND NOT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                      WHERE n.nspname = %(schema)s AND p.proname = m.name)
UNION ALL
SELECT m.kind || ' ' || m.name,
       CASE m.kind WHEN 'index' THEN 'CREATE INDEX ' || m.name || ' ON ' ELSE 'ALTER TABLE ' END
       || quote_ident(%(schema)s) || '.' || m.relation
       || CASE m.kind WHEN 'index' THEN '' ELSE ' ADD CONSTRAINT ' || m.name END
       || CASE m.kind WHEN 'index' THEN '' WHEN 'primary key' THEN ' PRIMARY KEY' ELSE ' UNIQUE' END
       || ' (' || m.columns || ')' || m.condition
FROM indexed m
WHERE NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = %(schema)s AND c.relname = m.name)
      AND NOT EXISTS (SELECT FROM there t WHERE t.relation = m.relation AND t.columns = m.columns
                                                AND (t.alone OR m.kind = 'index'))
UNION ALL
SELECT 'the log of table ' || c.relname,
       'ALTER TABLE ' || quote_ident(%(schema)s) || '.' || quote_ident(c.relname) || ' SET LOGGED'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND c.relpersistence = 'u'
ORDER BY 1
