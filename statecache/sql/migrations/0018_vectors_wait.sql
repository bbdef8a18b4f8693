-- What an index of vectors cannot take in for now waits, and its trouble is told: a full disk or a lacking right refuses no
-- state. Only what blames the data does, by the rule of what goes into quarantine: classes 22, 23, 54 and P0.

-- This takes vectors of states that have changed into their indexes, for about so many ms, and gives how many states it has
-- looked at. One at a time does so; whoever comes meanwhile gets 0. A state that an index cannot take for its data is left
-- out of it. Whatever else is in the way of an index is noted there: what waits for it waits on, and the others go on. An
-- index whose table is another one than was made, or is gone, or that nothing watched, is made anew and filled, once there
-- is pgvector. Until then nothing is in the way of any: none is added to, and searches compare all.
CREATE OR REPLACE FUNCTION {schema}.index_vectors(p_ms integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + p_ms * interval '1 ms';
    v_troubles jsonb := '{}'; -- of each index that had its turn, null where nothing was in its way
    v_id bigint := 0;
    v_key text;
    v_done bigint := 0;
    one record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('statecache vectors {schema}', 0)) THEN
        RETURN 0;
    END IF;
    FOR one IN SELECT i.namespace FROM {schema}.vector_index i
               WHERE EXISTS (SELECT FROM pg_extension WHERE extname = 'vector')
                     AND NOT {schema}.vectors_watched(i.namespace)
    LOOP
        BEGIN
            IF {schema}.watch_vectors(one.namespace, true) THEN
                RETURN 1; -- nobody who flushes is held up for longer than this
            END IF;
        EXCEPTION WHEN OTHERS THEN
            v_troubles := v_troubles || jsonb_build_object(one.namespace, SQLSTATE || ': ' || SQLERRM);
        END;
    END LOOP;
    FOR one IN SELECT i.namespace FROM {schema}.vector_index i
               WHERE EXISTS (SELECT FROM pg_extension WHERE extname = 'vector')
                     AND (NOT i.ready OR NOT EXISTS (SELECT FROM {schema}.vector_tables() t WHERE t.namespace = i.namespace))
                     AND {schema}.vectors_watched(i.namespace)
    LOOP
        BEGIN
            PERFORM {schema}.make_vector_table(one.namespace);
            v_done := v_done + {schema}.fill_vector_index(one.namespace);
            v_troubles := v_troubles || jsonb_build_object(one.namespace, NULL);
        EXCEPTION WHEN OTHERS THEN
            v_troubles := v_troubles || jsonb_build_object(one.namespace, SQLSTATE || ': ' || SQLERRM);
        END;
    END LOOP;
    LOOP
        SELECT p.id, p.key INTO v_id, v_key FROM {schema}.vector_pending p
        WHERE p.id > v_id AND v_troubles ->> split_part(p.key, '/', 1) IS NULL ORDER BY p.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        BEGIN
            DELETE FROM {schema}.vector_pending WHERE id = v_id;
            FOR one IN
                SELECT t.*, CASE WHEN s.op = 'set' THEN {schema}.json_or_null(s.value, s.encoding) -> t.member END AS vectors
                FROM {schema}.vector_tables() t LEFT JOIN {schema}.state s ON s.key = v_key
                WHERE t.namespace = split_part(v_key, '/', 1) AND s.op IS DISTINCT FROM 'quarantined'
            LOOP
                EXECUTE format('DELETE FROM {schema}.%I WHERE key = $1', one.relation) USING v_key;
                BEGIN
                    EXECUTE format('INSERT INTO {schema}.%I (key, place, embedding)
                                    SELECT $1, place, vector::%I.vector::%I.%s FROM {schema}.vectors_of($2, $3)',
                                   one.relation, one.extension, one.extension, one.kind)
                    USING v_key, one.vectors, one.dims;
                EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR plpgsql_error THEN
                    UPDATE {schema}.vector_index i SET refused = refused + 1 WHERE i.namespace = one.namespace;
                END;
            END LOOP;
            v_troubles := v_troubles || jsonb_build_object(split_part(v_key, '/', 1), NULL);
            v_done := v_done + 1;
        EXCEPTION WHEN OTHERS THEN
            v_troubles := v_troubles || jsonb_build_object(split_part(v_key, '/', 1), SQLSTATE || ': ' || SQLERRM);
        END;
        EXIT WHEN clock_timestamp() > v_until;
    END LOOP;
    UPDATE {schema}.vector_index i SET trouble = v_troubles ->> i.namespace
    WHERE (v_troubles ? i.namespace OR NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'vector'))
          AND i.trouble IS DISTINCT FROM v_troubles ->> i.namespace;
    RETURN v_done;
END $$;

-- What was refused for such a trouble waits again: the states that have no vectors in an index that has refused some.
SELECT pg_advisory_xact_lock(hashtextextended('statecache vectors {schema}', 0));
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT t.namespace, t.relation FROM {schema}.vector_tables() t
               JOIN {schema}.vector_index i ON i.namespace = t.namespace WHERE i.refused > 0
    LOOP
        EXECUTE format('INSERT INTO {schema}.vector_pending (key) SELECT s.key FROM {schema}.state s
                        WHERE s.key > $1 || ''/'' AND s.key < $1 || ''0'' AND s.op = ''set''
                              AND NOT EXISTS (SELECT FROM {schema}.%I t WHERE t.key = s.key)', one.relation)
        USING one.namespace;
    END LOOP;
    UPDATE {schema}.vector_index SET refused = 0 WHERE refused > 0;
END $$;

-- At the end, for whoever flushes waits for it.
ALTER TABLE {schema}.vector_index ADD COLUMN trouble text;
COMMENT ON COLUMN {schema}.vector_index.trouble IS 'Why what waits could not be taken in when it was last tried, or NULL.';
