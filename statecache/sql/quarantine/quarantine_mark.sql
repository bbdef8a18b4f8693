-- Makes quarantined changes the tips of their keys, so that the chains go on behind them, with the gap recorded, and keeps
-- the values of the changes before them. The marks are handed over by `quarantine_marks_given`. Of a key whose state is
-- refused, too, none is made: what of that is Postgres' word on the data (`postgres_errors`) spoils none of the others.
DO $$
DECLARE
    given jsonb;
    mark record;
    made text[] := '{}';
BEGIN
    FOR given IN SELECT jsonb_array_elements(current_setting('statecache.marks')::jsonb) LOOP
        BEGIN
            SELECT * INTO mark FROM jsonb_to_record(given)
                AS m (key text, shard integer, version bigint, epoch bigint, n bigint, change_id text,
                      parent_change_id text, writer text, at timestamptz);
            UPDATE {schema}.change c SET value = s.value FROM {schema}.state s
            WHERE s.key = mark.key AND c.key = s.key AND c.version = s.version AND s.op = 'set' AND c.op = 'set'
                  AND c.value IS NULL AND c.packed IS NULL;
            INSERT INTO {schema}.state AS s (key, shard, op, value, version, epoch, n, change_id, parent_change_id,
                                             encoding, schema, writer, updated_at)
            VALUES (mark.key, mark.shard, 'quarantined', '', mark.version, mark.epoch, mark.n, mark.change_id,
                    mark.parent_change_id, '', '', mark.writer, mark.at)
            ON CONFLICT (key) DO UPDATE SET
                op = excluded.op, value = excluded.value, version = excluded.version, epoch = excluded.epoch,
                n = excluded.n, change_id = excluded.change_id, parent_change_id = excluded.parent_change_id,
                encoding = excluded.encoding, schema = excluded.schema, writer = excluded.writer,
                updated_at = excluded.updated_at
            WHERE (excluded.epoch, excluded.version) > (s.epoch, s.version);
            SET CONSTRAINTS ALL IMMEDIATE;
            SET CONSTRAINTS ALL DEFERRED;
            made := made || mark.key;
        EXCEPTION
            WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR plpgsql_error THEN NULL;
        END;
    END LOOP;
    PERFORM set_config('statecache.marks_made', to_jsonb(made)::text, true);
END $$
