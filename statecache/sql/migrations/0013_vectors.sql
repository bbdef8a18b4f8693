-- Vectors in values, found by nearness: which namespaces have an index of them, and which states it does not show yet.

CREATE TABLE {schema}.vector_index (
    namespace  text COLLATE "C" PRIMARY KEY,
    member     text NOT NULL CHECK (member <> '' AND member !~ '[.[:cntrl:]]'),
    dims       integer NOT NULL CHECK (dims BETWEEN 1 AND 4000),
    relation   name NOT NULL UNIQUE,
    made_as    oid NOT NULL DEFAULT 0,
    ready      boolean NOT NULL DEFAULT false,
    refused    bigint NOT NULL DEFAULT 0,
    made_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.vector_index IS 'Namespaces whose vectors are indexed by pgvector: the member of a value that holds them, their dimensions, and the table that has them, by name and oid: where another one stands there, as after a restore, it is filled anew. Ready once every state is in it or waits; refused counts states that it could not take.';

CREATE TABLE {schema}.vector_pending (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key  text COLLATE "C" NOT NULL
);
COMMENT ON TABLE {schema}.vector_pending IS 'States whose vectors have changed since they were indexed; a worker takes them in, and searches look at them until then. A key may stand here several times.';
CREATE INDEX vector_pending_key ON {schema}.vector_pending (key);

-- This gives the numbers of a vector that is kept as 32-bit floats, the least byte first.
CREATE FUNCTION {schema}.floats_of(p_data bytea) RETURNS double precision[]
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT array_agg(CASE e WHEN 255 THEN 'NaN'::double precision
                            WHEN 0 THEN (1 - 2 * s) * m * power(2::double precision, -149)
                            ELSE (1 - 2 * s) * (8388608 + m) * power(2::double precision, e - 150) END ORDER BY i)
    FROM (SELECT i, get_byte(p_data, i * 4 + 3) >> 7 AS s,
                 ((get_byte(p_data, i * 4 + 3) & 127) << 1) | (get_byte(p_data, i * 4 + 2) >> 7) AS e,
                 ((get_byte(p_data, i * 4 + 2) & 127) << 16) | (get_byte(p_data, i * 4 + 1) << 8)
                     | get_byte(p_data, i * 4) AS m
          FROM generate_series(0, octet_length(p_data) / 4 - 1) AS i) AS parts
$$;

-- This gives the directions of the vectors that a member holds, of length 1: of numbers in a list, or of 32-bit floats in
-- base64, or of an object of up to 100 such. What is none of these, or has other dimensions, or no direction, is left out.
CREATE FUNCTION {schema}.vectors_of(p_member jsonb, p_dims integer) RETURNS TABLE (place integer, vector real[])
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    one record;
    v_numbers double precision[];
    v_length double precision;
BEGIN
    IF jsonb_typeof(p_member) = 'object' AND (SELECT count(*) FROM jsonb_object_keys(p_member)) > 100 THEN
        RETURN;
    END IF;
    FOR one IN
        SELECT e.value, e.ordinality
        FROM jsonb_each(CASE WHEN jsonb_typeof(p_member) = 'object' THEN p_member
                             ELSE jsonb_build_object('', p_member) END) WITH ORDINALITY AS e
    LOOP
        BEGIN
            IF jsonb_typeof(one.value) = 'array' AND jsonb_array_length(one.value) = p_dims THEN
                v_numbers := (SELECT array_agg(CASE jsonb_typeof(n.value) WHEN 'number' THEN n.value::double precision END
                                               ORDER BY n.ordinality)
                              FROM jsonb_array_elements(one.value) WITH ORDINALITY AS n);
            ELSIF jsonb_typeof(one.value) = 'string' AND length(one.value #>> '{}') <= 4 * ((p_dims * 4 + 2) / 3) THEN
                v_numbers := {schema}.floats_of(decode(one.value #>> '{}', 'base64'));
            ELSE
                CONTINUE;
            END IF;
            IF cardinality(v_numbers) IS DISTINCT FROM p_dims OR array_position(v_numbers, NULL) IS NOT NULL THEN
                CONTINUE;
            END IF;
            v_length := (SELECT sqrt(sum(n * n)) FROM unnest(v_numbers) AS n);
            IF v_length > 0 AND v_length < 'Infinity' THEN
                place := one.ordinality;
                vector := (SELECT array_agg(CASE WHEN abs(n.n / v_length) < 1e-30 THEN 0 ELSE n.n / v_length END::real
                                            ORDER BY n.ordinality)
                           FROM unnest(v_numbers) WITH ORDINALITY AS n (n, ordinality));
                RETURN NEXT;
            END IF;
        EXCEPTION WHEN data_exception OR array_subscript_error THEN
            CONTINUE;
        END;
    END LOOP;
END $$;

-- This gives the indexes whose tables are there as they were made, each with the schema of the extension and the type of
-- its vectors.
CREATE FUNCTION {schema}.vector_tables() RETURNS TABLE (namespace text, member text, dims integer, relation name,
                                                       ready boolean, extension name, kind text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT i.namespace, i.member, i.dims, i.relation, i.ready, n.nspname,
           CASE WHEN i.dims <= 2000 THEN 'vector' ELSE 'halfvec' END
    FROM {schema}.vector_index i
    JOIN pg_class c ON c.oid = i.made_as AND c.relname = i.relation AND c.relnamespace = '{schema}'::regnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'embedding' AND NOT a.attisdropped
    JOIN pg_extension e ON e.extname = 'vector' JOIN pg_namespace n ON n.oid = e.extnamespace
$$;
REVOKE ALL ON FUNCTION {schema}.vector_tables() FROM PUBLIC;

-- This notes that a state has changed whose vectors are indexed. Those of one that is gone go at once, unless something is in
-- the way: then they go with a worker's next turn, for nobody who flushes waits for it, or is refused for it.
CREATE FUNCTION {schema}.note_vectors() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_key text := CASE WHEN TG_OP = 'DELETE' THEN OLD.key ELSE NEW.key END;
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.vector_index i WHERE i.namespace = TG_ARGV[0]) THEN
        RETURN NULL;
    END IF;
    INSERT INTO {schema}.vector_pending (key) VALUES (v_key);
    IF TG_OP = 'DELETE' OR NEW.op = 'delete' THEN
        BEGIN
            EXECUTE format('DELETE FROM {schema}.%1$I WHERE ctid IN (
                SELECT ctid FROM {schema}.%1$I WHERE key = $1 FOR UPDATE SKIP LOCKED)',
                (SELECT i.relation FROM {schema}.vector_index i WHERE i.namespace = TG_ARGV[0])) USING v_key;
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END IF;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION {schema}.note_vectors() FROM PUBLIC;

-- This makes the table of an index, empty, as the schema's owner, with pgvector's graph over it.
CREATE FUNCTION {schema}.make_vector_table(p_namespace text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_index {schema}.vector_index;
    v_kind text;
    v_extension name := (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
                         WHERE e.extname = 'vector');
    v_owner name := (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = '{schema}.state'::regclass);
BEGIN
    SELECT * INTO v_index FROM {schema}.vector_index i WHERE i.namespace = p_namespace;
    v_kind := CASE WHEN v_index.dims <= 2000 THEN 'vector' ELSE 'halfvec' END;
    EXECUTE format('DROP TABLE IF EXISTS {schema}.%I', v_index.relation);
    EXECUTE format('CREATE TABLE {schema}.%I (
        key text COLLATE "C" NOT NULL, place integer NOT NULL, embedding %I.%s(%s) NOT NULL, PRIMARY KEY (key, place))',
        v_index.relation, v_extension, v_kind, v_index.dims);
    EXECUTE format('COMMENT ON TABLE {schema}.%I IS %L', v_index.relation,
        'The vectors of ' || p_namespace || ', made from the states; workers keep it, and make it anew.');
    EXECUTE format('CREATE INDEX ON {schema}.%I USING hnsw (embedding %I.%s_cosine_ops)',
        v_index.relation, v_extension, v_kind);
    IF v_owner <> current_user THEN
        EXECUTE format('ALTER TABLE {schema}.%I OWNER TO %I', v_index.relation, v_owner);
    END IF;
    UPDATE {schema}.vector_index i
    SET ready = false, made_as = format('{schema}.%I', v_index.relation)::regclass WHERE i.namespace = p_namespace;
END $$;
REVOKE ALL ON FUNCTION {schema}.make_vector_table(text) FROM PUBLIC;

-- This makes the index of a namespace's vectors. It is not ready before fill_vector_index() has been called, and has to be
-- watched by watch_vectors() first.
CREATE FUNCTION {schema}.create_vector_index(p_namespace text, p_member text, p_dims integer) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('statecache vectors {schema}', 0));
    INSERT INTO {schema}.vector_index (namespace, member, dims, relation)
    VALUES (p_namespace, p_member, p_dims, 'vectors_of_' || left(regexp_replace(p_namespace, '[^A-Za-z0-9]+', '_', 'g'), 30)
                                           || '_' || left(md5(p_namespace), 8));
    PERFORM {schema}.make_vector_table(p_namespace);
END $$;
REVOKE ALL ON FUNCTION {schema}.create_vector_index(text, text, integer) FROM PUBLIC;

-- This has triggers say which states of a namespace change, or say no more, and gives whether they do as is asked. It waits
-- for the table of states no longer than flushes can be held up; repeated, it is done some time.
CREATE FUNCTION {schema}.watch_vectors(p_namespace text, p_watched boolean) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    v_name name := 'vectors_of_' || left(md5(p_namespace), 12);
    v_there boolean := EXISTS (SELECT FROM pg_trigger t
                               WHERE t.tgrelid = '{schema}.state'::regclass AND t.tgname = v_name || '_set');
BEGIN
    IF p_watched AND NOT v_there THEN
        EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE OF op, value ON {schema}.state FOR EACH ROW
            WHEN (starts_with(NEW.key, %L)) EXECUTE FUNCTION {schema}.note_vectors(%L)',
            v_name || '_set', p_namespace || '/', p_namespace);
        EXECUTE format('CREATE TRIGGER %I AFTER DELETE ON {schema}.state FOR EACH ROW
            WHEN (starts_with(OLD.key, %L)) EXECUTE FUNCTION {schema}.note_vectors(%L)',
            v_name || '_gone', p_namespace || '/', p_namespace);
    ELSIF v_there AND NOT p_watched THEN
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON {schema}.state', v_name || '_set');
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON {schema}.state', v_name || '_gone');
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;
REVOKE ALL ON FUNCTION {schema}.watch_vectors(text, boolean) FROM PUBLIC;

-- This notes every state that a namespace has by now as one to be indexed, and gives how many there are.
CREATE FUNCTION {schema}.fill_vector_index(p_namespace text) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('statecache vectors {schema}', 0));
    INSERT INTO {schema}.vector_pending (key)
    SELECT key FROM {schema}.state WHERE key > p_namespace || '/' AND key < p_namespace || '0' AND op <> 'delete';
    GET DIAGNOSTICS v_count = ROW_COUNT;
    UPDATE {schema}.vector_index SET ready = true WHERE namespace = p_namespace;
    RETURN v_count;
END $$;
REVOKE ALL ON FUNCTION {schema}.fill_vector_index(text) FROM PUBLIC;

-- This lets the index of a namespace's vectors go, whatever is left of it, and gives whether there was one. The states keep
-- their vectors. What watches them does nothing from then on.
CREATE FUNCTION {schema}.drop_vector_index(p_namespace text) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_relation name;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('statecache vectors {schema}', 0));
    DELETE FROM {schema}.vector_index WHERE namespace = p_namespace RETURNING relation INTO v_relation;
    IF v_relation IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS {schema}.%I', v_relation);
    DELETE FROM {schema}.vector_pending WHERE key > p_namespace || '/' AND key < p_namespace || '0';
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION {schema}.drop_vector_index(text) FROM PUBLIC;

-- This takes vectors of states that have changed into their indexes, for about so many ms, and gives how many states it has
-- looked at. One at a time does so; whoever comes meanwhile gets 0. A state that an index cannot take is left out of it. An
-- index whose table is another one than was made, or is gone, is made anew and filled, once there is pgvector.
CREATE FUNCTION {schema}.index_vectors(p_ms integer) RETURNS bigint
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
                     AND (NOT i.ready OR NOT EXISTS (SELECT FROM {schema}.vector_tables() t WHERE t.namespace = i.namespace))
                     AND EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = '{schema}.state'::regclass
                                 AND t.tgname = 'vectors_of_' || left(md5(i.namespace), 12) || '_set')
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
REVOKE ALL ON FUNCTION {schema}.index_vectors(integer) FROM PUBLIC;

-- This gives the keys of states within bounds whose vectors are the nearest to one, as far as they are indexed, with the
-- cosine distance of the nearest of each: about p_limit vectors of the index. Values hold what p_where says.
CREATE FUNCTION {schema}.nearest_keys(
    p_namespace text, p_vector real[], p_after text, p_least text, p_before text, p_most text, p_where jsonb[],
    p_without text[], p_limit integer
) RETURNS TABLE (key text, distance double precision)
    LANGUAGE plpgsql STABLE ROWS 50 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
BEGIN
    SELECT * INTO one FROM {schema}.vector_tables() t WHERE t.namespace = p_namespace AND t.ready;
    IF NOT FOUND OR one.dims <> cardinality(p_vector) THEN
        RETURN;
    END IF;
    PERFORM set_config('hnsw.iterative_scan', 'strict_order', true), set_config('hnsw.max_scan_tuples', '200000', true)
    FROM pg_extension WHERE extname = 'vector' AND string_to_array(extversion, '.')::integer[] >= ARRAY[0, 8];
    PERFORM set_config('hnsw.ef_search', least(greatest(p_limit, 100), 1000)::text, true);
    RETURN QUERY EXECUTE format(
        'SELECT v.key, v.embedding OPERATOR(%2$I.<=>) $1::%2$I.vector::%2$I.%3$s
         FROM {schema}.%1$I v JOIN {schema}.state s ON s.key = v.key
         WHERE v.key > $2 AND v.key >= $3 AND v.key < $4 AND v.key <= $5 AND s.op IN (''set'', ''quarantined'')
               AND s.schema <> ALL ($7)
               AND (cardinality($6) = 0 OR s.op = ''quarantined''
                    OR {schema}.json_or_null(s.value, s.encoding) @> ALL ($6))
         ORDER BY v.embedding OPERATOR(%2$I.<=>) $1::%2$I.vector::%2$I.%3$s LIMIT $8',
        one.relation, one.extension, one.kind)
    USING p_vector, p_after, p_least, p_before, p_most, p_where, p_without, p_limit;
END $$;
REVOKE ALL ON FUNCTION {schema}.nearest_keys(text, real[], text, text, text, text, jsonb[], text[], integer) FROM PUBLIC;

-- Roles that were set up for an earlier schema go on working: whoever may read the states may read these and search, and
-- whoever may write changes may index vectors.
DO $$
DECLARE may record;
BEGIN
    FOR may IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role,
                      a.privilege_type AS kind
               FROM pg_class c, aclexplode(c.relacl) AS a
               WHERE (c.oid = '{schema}.state'::regclass AND a.privilege_type = 'SELECT')
                     OR (c.oid = '{schema}.change'::regclass AND a.privilege_type = 'INSERT')
    LOOP
        IF may.kind = 'SELECT' THEN
            EXECUTE 'GRANT SELECT ON {schema}.vector_index, {schema}.vector_pending TO ' || may.role;
            EXECUTE 'GRANT EXECUTE ON FUNCTION {schema}.vector_tables(), {schema}.nearest_keys(text, real[], text, text, '
                    || 'text, text, jsonb[], text[], integer) TO ' || may.role;
        ELSE
            EXECUTE 'GRANT EXECUTE ON FUNCTION {schema}.index_vectors(integer) TO ' || may.role;
        END IF;
    END LOOP;
END $$;
