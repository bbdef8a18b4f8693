-- Where session_replication_role is replica, as a role's or a database's default may have it, ordinary triggers do not fire:
-- those that say which states of a namespace change always do. Workers make indexes anew that the ordinary ones watched.

-- This gives whether triggers say which states of a namespace change, whoever changes them.
CREATE OR REPLACE FUNCTION {schema}.vectors_watched(p_namespace text) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) = 2 FROM pg_trigger t
    WHERE t.tgrelid = '{schema}.state'::regclass AND t.tgenabled = 'A'
          AND t.tgname IN ('vectors_of_' || left(md5(p_namespace), 12) || '_set',
                           'vectors_of_' || left(md5(p_namespace), 12) || '_gone')
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
        EXECUTE format('ALTER TABLE {schema}.state ENABLE ALWAYS TRIGGER %I, ENABLE ALWAYS TRIGGER %I',
            v_name || '_set', v_name || '_gone');
        UPDATE {schema}.vector_index i SET ready = false WHERE i.namespace = p_namespace;
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;
