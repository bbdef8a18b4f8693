-- An index of vectors that nothing watches is none: searches compare all, and a worker has it watched and made anew.

-- This gives whether triggers say which states of a namespace change.
CREATE FUNCTION {schema}.vectors_watched(p_namespace text) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) = 2 FROM pg_trigger t
    WHERE t.tgrelid = '{schema}.state'::regclass AND t.tgenabled IN ('O', 'A')
          AND t.tgname IN ('vectors_of_' || left(md5(p_namespace), 12) || '_set',
                           'vectors_of_' || left(md5(p_namespace), 12) || '_gone')
$$;
REVOKE ALL ON FUNCTION {schema}.vectors_watched(text) FROM PUBLIC;

-- This gives the indexes that are watched and whose tables are there as they were made, each with the schema of the
-- extension and the type of its vectors.
CREATE OR REPLACE FUNCTION {schema}.vector_tables() RETURNS TABLE (namespace text, member text, dims integer, relation name,
                                                                  ready boolean, extension name, kind text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT i.namespace, i.member, i.dims, i.relation, i.ready, n.nspname,
           CASE WHEN i.dims <= 2000 THEN 'vector' ELSE 'halfvec' END
    FROM {schema}.vector_index i
    JOIN pg_class c ON c.oid = i.made_as AND c.relname = i.relation AND c.relnamespace = '{schema}'::regnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'embedding' AND NOT a.attisdropped
    JOIN pg_extension e ON e.extname = 'vector' JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE {schema}.vectors_watched(i.namespace)
$$;

-- This has triggers say which states of a namespace change, or say no more once it has no index, and gives whether they do
-- as is asked. It waits for the table of states, and for who makes or drops an index, no longer than flushes can be held up;
-- repeated, it is done some time.
CREATE OR REPLACE FUNCTION {schema}.watch_vectors(p_namespace text, p_watched boolean) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    v_name name := 'vectors_of_' || left(md5(p_namespace), 12);
    v_there boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('statecache vectors {schema}', 0));
    v_there := EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = '{schema}.state'::regclass
                       AND t.tgname IN (v_name || '_set', v_name || '_gone'));
    IF p_watched AND {schema}.vectors_watched(p_namespace)
       OR NOT p_watched AND (NOT v_there OR EXISTS (
           SELECT FROM {schema}.vector_index i WHERE i.namespace = p_namespace)) THEN
        RETURN true;
    END IF;
    IF v_there THEN
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON {schema}.state', v_name || '_set');
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON {schema}.state', v_name || '_gone');
    END IF;
    IF p_watched THEN
        EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE OF op, value ON {schema}.state FOR EACH ROW
            WHEN (starts_with(NEW.key, %L)) EXECUTE FUNCTION {schema}.note_vectors(%L)',
            v_name || '_set', p_namespace || '/', p_namespace);
        EXECUTE format('CREATE TRIGGER %I AFTER DELETE ON {schema}.state FOR EACH ROW
            WHEN (starts_with(OLD.key, %L)) EXECUTE FUNCTION {schema}.note_vectors(%L)',
            v_name || '_gone', p_namespace || '/', p_namespace);
        UPDATE {schema}.vector_index i SET ready = false WHERE i.namespace = p_namespace;
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- This takes vectors of states that have changed into their indexes, for about so many ms, and gives how many states it has
-- looked at. One at a time does so; whoever comes meanwhile gets 0. A state that an index cannot take is left out of it. An
-- index whose table is another one than was made, or is gone, or that nothing watched, is made anew and filled, once there
-- is pgvector.
CREATE OR REPLACE FUNCTION {schema}.index_vectors(p_ms integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + p_ms * interval '1 ms';
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
        IF {schema}.watch_vectors(one.namespace, true) THEN
            RETURN 1; -- nobody who flushes is held up for longer than this
        END IF;
    END LOOP;
    FOR one IN SELECT i.namespace FROM {schema}.vector_index i
               WHERE EXISTS (SELECT FROM pg_extension WHERE extname = 'vector')
                     AND (NOT i.ready OR NOT EXISTS (SELECT FROM {schema}.vector_tables() t WHERE t.namespace = i.namespace))
                     AND {schema}.vectors_watched(i.namespace)
    LOOP
        PERFORM {schema}.make_vector_table(one.namespace);
        v_done := v_done + {schema}.fill_vector_index(one.namespace);
    END LOOP;
    LOOP
        WITH first AS (SELECT id FROM {schema}.vector_pending ORDER BY id LIMIT 1),
             taken AS (DELETE FROM {schema}.vector_pending p USING first WHERE p.id = first.id RETURNING p.key)
        SELECT key INTO v_key FROM taken;
        EXIT WHEN v_key IS NULL;
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
            EXCEPTION WHEN OTHERS THEN
                UPDATE {schema}.vector_index i SET refused = refused + 1 WHERE i.namespace = one.namespace;
            END;
        END LOOP;
        v_done := v_done + 1;
        EXIT WHEN clock_timestamp() > v_until;
    END LOOP;
    RETURN v_done;
END $$;
