-- Vectors in values, found by nearness: which namespaces have an index of them, and which states it does not show yet.

CREATE TABLE {schema}.vector_index (
    namespace  text COLLATE "C" PRIMARY KEY,
    member     text NOT NULL CHECK (member <> '' AND member !~ '[.\x00-\x1f]'),
    dims       integer NOT NULL CHECK (dims BETWEEN 1 AND 4000),
    relation   name NOT NULL UNIQUE,
    extension  name NOT NULL,
    ready      boolean NOT NULL DEFAULT false,
    made_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.vector_index IS 'Namespaces whose vectors are indexed by pgvector: the member of a value that holds them, their dimensions, the table that has them, and the schema of the extension. Ready once every state is in it or waits.';

CREATE TABLE {schema}.vector_pending (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key  text COLLATE "C" NOT NULL
);
COMMENT ON TABLE {schema}.vector_pending IS 'States whose vectors have changed since they were indexed; a worker takes them in, and searches look at them until then. A key may stand here several times.';
CREATE INDEX vector_pending_key ON {schema}.vector_pending (key);

-- This gives the numbers of a vector that is kept as 32-bit floats, the least byte first.
CREATE FUNCTION {schema}.floats_of(p_data bytea) RETURNS real[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT array_agg(CASE e WHEN 255 THEN 'NaN'::real
                            WHEN 0 THEN ((1 - 2 * s) * m * power(2::double precision, -149))::real
                            ELSE ((1 - 2 * s) * (8388608 + m) * power(2::double precision, e - 150))::real END ORDER BY i)
    FROM (SELECT i, get_byte(p_data, i * 4 + 3) >> 7 AS s,
                 ((get_byte(p_data, i * 4 + 3) & 127) << 1) | (get_byte(p_data, i * 4 + 2) >> 7) AS e,
                 ((get_byte(p_data, i * 4 + 2) & 127) << 16) | (get_byte(p_data, i * 4 + 1) << 8)
                     | get_byte(p_data, i * 4) AS m
          FROM generate_series(0, octet_length(p_data) / 4 - 1) AS i) AS parts
$$;

-- This gives the vectors that a member holds: numbers in a list, or 32-bit floats in base64, or an object of such. What
-- is none of these, is of other dimensions or holds no direction is left out.
CREATE FUNCTION {schema}.vectors_of(p_member jsonb, p_dims integer) RETURNS TABLE (path text, vector real[])
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT e.key, e.value FROM jsonb_each(CASE WHEN jsonb_typeof(p_member) = 'object' THEN p_member
                                                   ELSE jsonb_build_object('', p_member) END) AS e
    LOOP
        path := one.key;
        BEGIN
            IF jsonb_typeof(one.value) = 'array' AND jsonb_array_length(one.value) = p_dims THEN
                vector := (SELECT array_agg(CASE jsonb_typeof(n.value) WHEN 'number' THEN n.value::real END
                                            ORDER BY n.ordinality)
                           FROM jsonb_array_elements(one.value) WITH ORDINALITY AS n);
            ELSIF jsonb_typeof(one.value) = 'string' AND length(one.value #>> '{}') <= 4 * ((p_dims * 4 + 2) / 3) THEN
                vector := {schema}.floats_of(decode(one.value #>> '{}', 'base64'));
            ELSE
                CONTINUE;
            END IF;
        EXCEPTION WHEN data_exception OR array_subscript_error THEN
            CONTINUE;
        END;
        IF cardinality(vector) = p_dims AND array_position(vector, NULL) IS NULL
           AND 'NaN'::real <> ALL (vector) AND 'Infinity'::real <> ALL (vector) AND '-Infinity'::real <> ALL (vector)
           AND 0::real IS DISTINCT FROM (SELECT max(abs(n)) FROM unnest(vector) AS n) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- This notes that a state has changed whose vectors are indexed. Those of one that is gone go at once, unless a worker is at
-- them: then they go with its next turn, for nobody who flushes waits for it.
CREATE FUNCTION {schema}.note_vectors() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_key text := CASE WHEN TG_OP = 'DELETE' THEN OLD.key ELSE NEW.key END;
BEGIN
    IF TG_OP = 'DELETE' OR NEW.op = 'delete' THEN
        EXECUTE format('DELETE FROM {schema}.%1$I WHERE ctid IN (
            SELECT ctid FROM {schema}.%1$I WHERE key = $1 FOR UPDATE SKIP LOCKED)', TG_ARGV[0]) USING v_key;
    END IF;
    INSERT INTO {schema}.vector_pending (key) VALUES (v_key);
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION {schema}.note_vectors() FROM PUBLIC;

-- This makes the index of a namespace's vectors: a table of them, with pgvector's graph over it, and triggers that say of
-- which states it has to hear. It is not ready before fill_vector_index() has been called.
CREATE FUNCTION {schema}.create_vector_index(p_namespace text, p_member text, p_dims integer) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    v_extension name := (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
                         WHERE e.extname = 'vector');
    v_relation name := 'vectors_of_' || left(regexp_replace(p_namespace, '[^A-Za-z0-9]+', '_', 'g'), 30) || '_'
                       || left(md5(p_namespace), 8);
    v_kind text := CASE WHEN p_dims <= 2000 THEN 'vector' ELSE 'halfvec' END;
BEGIN
    INSERT INTO {schema}.vector_index (namespace, member, dims, relation, extension)
    VALUES (p_namespace, p_member, p_dims, v_relation, v_extension);
    EXECUTE format('CREATE TABLE {schema}.%I (
        key text COLLATE "C" NOT NULL, path text NOT NULL, embedding %I.%s(%s) NOT NULL, PRIMARY KEY (key, path))',
        v_relation, v_extension, v_kind, p_dims);
    EXECUTE format('COMMENT ON TABLE {schema}.%I IS %L', v_relation,
        'The vectors of ' || p_namespace || ', made from the states; workers keep it.');
    EXECUTE format('CREATE INDEX ON {schema}.%I USING hnsw (embedding %I.%s_cosine_ops)', v_relation, v_extension, v_kind);
    EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE OF op, value ON {schema}.state FOR EACH ROW
        WHEN (starts_with(NEW.key, %L)) EXECUTE FUNCTION {schema}.note_vectors(%L)',
        v_relation || '_set', p_namespace || '/', v_relation);
    EXECUTE format('CREATE TRIGGER %I AFTER DELETE ON {schema}.state FOR EACH ROW
        WHEN (starts_with(OLD.key, %L)) EXECUTE FUNCTION {schema}.note_vectors(%L)',
        v_relation || '_gone', p_namespace || '/', v_relation);
END $$;
REVOKE ALL ON FUNCTION {schema}.create_vector_index(text, text, integer) FROM PUBLIC;

-- This notes every state that a namespace has by now as one to be indexed, and gives how many there are.
CREATE FUNCTION {schema}.fill_vector_index(p_namespace text) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_count bigint;
BEGIN
    INSERT INTO {schema}.vector_pending (key)
    SELECT key FROM {schema}.state WHERE key > p_namespace || '/' AND key < p_namespace || '0' AND op <> 'delete';
    GET DIAGNOSTICS v_count = ROW_COUNT;
    UPDATE {schema}.vector_index SET ready = true WHERE namespace = p_namespace;
    RETURN v_count;
END $$;
REVOKE ALL ON FUNCTION {schema}.fill_vector_index(text) FROM PUBLIC;

-- This lets the index of a namespace's vectors go, and gives whether there was one. The states keep their vectors.
CREATE FUNCTION {schema}.drop_vector_index(p_namespace text) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    v_relation name;
BEGIN
    DELETE FROM {schema}.vector_index WHERE namespace = p_namespace RETURNING relation INTO v_relation;
    IF v_relation IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TRIGGER %I ON {schema}.state', v_relation || '_set');
    EXECUTE format('DROP TRIGGER %I ON {schema}.state', v_relation || '_gone');
    EXECUTE format('DROP TABLE {schema}.%I', v_relation);
    DELETE FROM {schema}.vector_pending WHERE key > p_namespace || '/' AND key < p_namespace || '0';
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION {schema}.drop_vector_index(text) FROM PUBLIC;

-- This takes vectors of states that have changed into their indexes, for about so many ms, and gives how many states it has
-- looked at. One at a time does so; whoever comes meanwhile gets 0.
CREATE FUNCTION {schema}.index_vectors(p_ms integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + p_ms * interval '1 ms';
    v_keys text[];
    v_done bigint := 0;
    one record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('statecache vectors {schema}', 0)) THEN
        RETURN 0;
    END IF;
    LOOP
        WITH first AS (SELECT id FROM {schema}.vector_pending ORDER BY id LIMIT 20 FOR UPDATE SKIP LOCKED),
             taken AS (DELETE FROM {schema}.vector_pending p USING first WHERE p.id = first.id RETURNING p.key)
        SELECT array_agg(DISTINCT key) INTO v_keys FROM taken;
        EXIT WHEN v_keys IS NULL;
        FOR one IN
            SELECT i.relation, i.extension, i.member, i.dims, k.key,
                   CASE WHEN i.dims <= 2000 THEN 'vector' ELSE 'halfvec' END AS kind,
                   CASE WHEN s.op = 'set' THEN {schema}.json_or_null(s.value, s.encoding) -> i.member END AS vectors
            FROM unnest(v_keys) AS k (key)
            JOIN {schema}.vector_index i ON i.namespace = split_part(k.key, '/', 1)
            LEFT JOIN {schema}.state s ON s.key = k.key
            WHERE s.op IS DISTINCT FROM 'quarantined'
        LOOP
            EXECUTE format('DELETE FROM {schema}.%I WHERE key = $1', one.relation) USING one.key;
            EXECUTE format('INSERT INTO {schema}.%I (key, path, embedding)
                            SELECT $1, path, vector::%I.vector::%I.%s FROM {schema}.vectors_of($2, $3)',
                           one.relation, one.extension, one.extension, one.kind)
            USING one.key, one.vectors, one.dims;
        END LOOP;
        v_done := v_done + cardinality(v_keys);
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
    v_index {schema}.vector_index;
BEGIN
    SELECT * INTO v_index FROM {schema}.vector_index i WHERE i.namespace = p_namespace AND i.ready;
    IF v_index.relation IS NULL THEN
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
        v_index.relation, v_index.extension, CASE WHEN v_index.dims <= 2000 THEN 'vector' ELSE 'halfvec' END)
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
            EXECUTE 'GRANT EXECUTE ON FUNCTION {schema}.nearest_keys(text, real[], text, text, text, text, jsonb[], text[], '
                    || 'integer) TO ' || may.role;
        ELSE
            EXECUTE 'GRANT EXECUTE ON FUNCTION {schema}.index_vectors(integer) TO ' || may.role;
        END IF;
    END LOOP;
END $$;
