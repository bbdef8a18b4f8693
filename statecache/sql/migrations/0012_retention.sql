-- What is kept of history: for how long, how far changes have their hashes, and what was erased.
ALTER TABLE {schema}.shard ADD COLUMN hashed bigint NOT NULL DEFAULT 0,
    ADD COLUMN moved_keyframes bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN {schema}.shard.hashed IS 'Every change up to this n has its hash; behind it are those of an earlier release that workers have not packed yet.';
COMMENT ON COLUMN {schema}.shard.moved_keyframes IS 'Counts how often keyframes were moved that the next deltas may build on; its flusher forgets then what it remembers of values.';

CREATE TABLE {schema}.erasure (
    key      text COLLATE "C" PRIMARY KEY,
    version  bigint NOT NULL,
    by       text NOT NULL,
    at       timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.erasure IS 'Keys that were erased: up to this version nothing is left of their changes but the change_ids.';

CREATE TABLE {schema}.retention (
    name        text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9_.-]{1,64}$'),
    history     text NOT NULL CHECK (history IN ('full', 'latest')),
    max_age     interval CHECK (max_age > interval '0'),
    max_count   integer CHECK (max_count > 0),
    changed_by  text NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    CHECK (history = 'full' OR (max_age IS NULL AND max_count IS NULL))
);
COMMENT ON TABLE {schema}.retention IS 'Which values of a namespace''s changes are kept: of all, or of the latest alone; of those replaced not longer ago than max_age, and of the newest max_count of each key. A value goes where all that is given lets it go.';

-- How far workers have come with letting values of a namespace go, and which of them is at it.
CREATE TABLE {schema}.prune_pass (
    name        text COLLATE "C" PRIMARY KEY,
    key         text COLLATE "C" NOT NULL DEFAULT '',
    version     bigint NOT NULL DEFAULT 0,
    holder      text NOT NULL,
    held_until  timestamptz NOT NULL,
    begun_at    timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz,
    values      bigint NOT NULL DEFAULT 0,
    bytes       bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.prune_pass IS 'The last pass of workers through each namespace whose policy lets values go, or the one that is under way: where it stands, how many values it let go, and how many bytes.';

-- This records what is kept of a namespace's history where nothing is recorded of it yet, and gives what is recorded then.
CREATE FUNCTION {schema}.declare_history(p_name text, p_history text, p_age interval, p_count integer, p_by text)
    RETURNS TABLE (history text, max_age interval, max_count integer, changed_by text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO {schema}.retention (name, history, max_age, max_count, changed_by)
    VALUES (p_name, p_history, p_age, p_count, p_by) ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT r.history, r.max_age, r.max_count, r.changed_by FROM {schema}.retention r WHERE r.name = p_name;
END $$;
REVOKE ALL ON FUNCTION {schema}.declare_history(text, text, interval, integer, text) FROM PUBLIC;

-- This records what is kept of a namespace's history, whatever was recorded before.
CREATE FUNCTION {schema}.set_history(p_name text, p_history text, p_age interval, p_count integer, p_by text)
    RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
    INSERT INTO {schema}.retention AS r (name, history, max_age, max_count, changed_by)
    VALUES (p_name, p_history, p_age, p_count, p_by)
    ON CONFLICT (name) DO UPDATE SET
        history = excluded.history, max_age = excluded.max_age, max_count = excluded.max_count,
        changed_by = excluded.changed_by, changed_at = now()
$$;
REVOKE ALL ON FUNCTION {schema}.set_history(text, text, interval, integer, text) FROM PUBLIC;

-- This blanks what is kept of keys up to these versions, which have been replaced: of so many changes at most, and of all
-- that was set aside. It gives, for each place, how many rows were blanked and how many bytes of values. Called again
-- until no change is left; without keys it only shows that one may. Where another key's change is still kept as a delta
-- to one of these, it gives that alone, and blanks nothing: it has to be detached first.
CREATE FUNCTION {schema}.erase_history(p_keys text[], p_versions bigint[], p_by text, p_most integer)
    RETURNS TABLE (place text, rows bigint, bytes bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF EXISTS (SELECT FROM unnest(p_keys, p_versions) AS k (key, version)
               LEFT JOIN {schema}.state s ON s.key = k.key WHERE s.version IS NULL OR s.version <= k.version) THEN
        RAISE EXCEPTION 'a version that is to be erased is the newest of its key';
    END IF;
    PERFORM FROM {schema}.change c JOIN unnest(p_keys, p_versions) AS k (key, version)
            ON c.key = k.key AND c.version <= k.version
            WHERE c.packed IS NOT NULL OR c.value IS NOT NULL ORDER BY c.key, c.version LIMIT p_most FOR UPDATE OF c;
    IF EXISTS (SELECT FROM {schema}.branch b
               JOIN unnest(p_keys, p_versions) AS k (key, version) ON b.origin = k.key AND b.origin_version <= k.version
               JOIN {schema}.change o ON o.key = b.key AND o.version = b.version
               WHERE b.key <> ALL (p_keys) AND get_byte(o.packed, 0) = 111) THEN
        RETURN QUERY SELECT 'delta'::text, 1::bigint, 0::bigint;
        RETURN;
    END IF;
    INSERT INTO {schema}.erasure AS e (key, version, by)
    SELECT k.key, k.version, p_by FROM unnest(p_keys, p_versions) AS k (key, version)
    ON CONFLICT (key) DO UPDATE SET version = greatest(e.version, excluded.version), by = excluded.by, at = now();
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT c.key, c.version, coalesce(octet_length(c.packed), octet_length(c.value), 0)::bigint AS bytes
        FROM {schema}.change c
        JOIN unnest(p_keys, p_versions) AS k (key, version) ON c.key = k.key AND c.version <= k.version
        WHERE c.value IS NOT NULL OR c.packed IS NOT NULL OR c.digest IS NOT NULL OR c.hash IS NOT NULL
              OR c.writer <> '' OR c.actor <> '' OR c.reason <> ''
        ORDER BY c.key, c.version LIMIT p_most
    ), blanked AS (
        UPDATE {schema}.change c
        SET value = NULL, packed = NULL, keyframe = NULL, size = 0, digest = NULL, hash = NULL, writer = '',
            actor = '', reason = ''
        FROM found s WHERE c.key = s.key AND c.version = s.version RETURNING s.bytes
    )
    SELECT 'change'::text, count(*), coalesce(sum(b.bytes), 0)::bigint FROM blanked b;
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT c.change_id, c.key, octet_length(c.value)::bigint AS bytes FROM {schema}.conflict c
        WHERE c.key = ANY (p_keys) AND (octet_length(c.value) > 0 OR c.writer <> '' OR c.actor <> '' OR c.reason <> '')
    ), blanked AS (
        UPDATE {schema}.conflict c SET value = '', writer = '', actor = '', reason = ''
        FROM found s WHERE c.change_id = s.change_id AND c.key = s.key RETURNING s.bytes
    )
    SELECT 'conflict'::text, count(*), coalesce(sum(b.bytes), 0)::bigint FROM blanked b;
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT q.shard, q.epoch, q.n, octet_length(q.entry)::bigint AS bytes FROM {schema}.quarantine q
        WHERE q.keys && p_keys AND (q.keys <@ p_keys OR q.sqlstate = 'dropped')
              AND (octet_length(q.entry) > 1 OR q.error <> 'erased')
    ), blanked AS (
        UPDATE {schema}.quarantine q SET entry = decode('90', 'hex'), sqlstate = 'dropped', error = 'erased'
        FROM found s WHERE q.shard = s.shard AND q.epoch = s.epoch AND q.n = s.n RETURNING s.bytes
    )
    SELECT 'quarantine'::text, count(*), coalesce(sum(b.bytes), 0)::bigint FROM blanked b;
    RETURN QUERY
    WITH gone AS (DELETE FROM {schema}.lost_change l WHERE l.key = ANY (p_keys) RETURNING 1)
    SELECT 'lost_change'::text, count(*), 0::bigint FROM gone;
    RETURN QUERY
    WITH gone AS (
        DELETE FROM {schema}.branch b USING unnest(p_keys, p_versions) AS k (key, version)
        WHERE b.key = k.key AND b.version <= k.version RETURNING 1
    )
    SELECT 'branch'::text, count(*), 0::bigint FROM gone;
END $$;
REVOKE ALL ON FUNCTION {schema}.erase_history(text[], bigint[], text, integer) FROM PUBLIC;

-- This has a change that is kept as a delta to another key's be kept by itself, given its value, and says whether it is.
CREATE FUNCTION {schema}.detach_branch(p_key text, p_version bigint, p_value bytea) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
    UPDATE {schema}.change SET value = p_value, packed = NULL
    WHERE key = p_key AND version = p_version AND get_byte(packed, 0) = 111 AND digest = sha256(p_value)
    RETURNING true
$$;
REVOKE ALL ON FUNCTION {schema}.detach_branch(text, bigint, bytea) FROM PUBLIC;

-- Roles that were set up for an earlier schema go on working: whoever may read the changes may read these, whoever may
-- move the watermarks may move what is moved with them, whoever may add changes may change how they are kept and for how
-- long, and erase them, and whoever may record how locks are kept may do the same for histories of which nothing is recorded.
DO $$
DECLARE may record;
BEGIN
    FOR may IN SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) AS a
               WHERE c.oid = '{schema}.change'::regclass AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE 'GRANT SELECT ON {schema}.erasure, {schema}.retention, {schema}.prune_pass TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
    FOR may IN SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) AS a
               WHERE c.oid = '{schema}.change'::regclass AND a.privilege_type = 'INSERT'
    LOOP
        EXECUTE 'GRANT UPDATE (value, packed, keyframe, size, digest, hash) ON {schema}.change TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
        EXECUTE 'GRANT INSERT, UPDATE ON {schema}.prune_pass TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
        EXECUTE 'GRANT EXECUTE ON FUNCTION {schema}.set_history(text, text, interval, integer, text), '
                || '{schema}.erase_history(text[], bigint[], text, integer), '
                || '{schema}.detach_branch(text, bigint, bytea) TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
    FOR may IN SELECT DISTINCT a.grantee FROM pg_proc p, aclexplode(p.proacl) AS a
               WHERE p.oid = '{schema}.set_locking(text, text, text, bigint)'::regprocedure
                     AND a.privilege_type = 'EXECUTE'
    LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION {schema}.declare_history(text, text, interval, integer, text) TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
    FOR may IN SELECT DISTINCT a.grantee FROM pg_attribute c, aclexplode(c.attacl) AS a
               WHERE c.attrelid = '{schema}.shard'::regclass AND c.attname = 'flushed' AND a.privilege_type = 'UPDATE'
    LOOP
        EXECUTE 'GRANT UPDATE (hashed, moved_keyframes) ON {schema}.shard TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
END $$;
