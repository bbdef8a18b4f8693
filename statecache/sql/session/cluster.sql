-- Gives what every client and worker must agree on, and the schema that the functions here name, the one they were made in:
-- in a schema that was renamed they go on in the one that has its old name.
SELECT id::text, shards, hash, group_rule, prefix, min_code,
       (SELECT min(substring(prosrc FROM '"([a-z_][a-z0-9_]*)"[.]')) FROM pg_proc
        WHERE proname = 'begin_epoch' AND pronamespace = to_regnamespace('{schema}'))
FROM {schema}.cluster
