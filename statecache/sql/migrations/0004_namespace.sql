-- Policies of namespaces that others must keep: recorded once here, with a copy in every shard's meta in Redis.

CREATE TABLE {schema}.namespace (
    name        text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9_.-]{1,64}$'),
    locking     text NOT NULL CHECK (locking IN ('advisory', 'enforced')),
    revision    bigint NOT NULL,
    changed_by  text NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.namespace IS 'What all who write to a namespace must keep; revision counts the changes of all of them.';

-- This gives the policies as each shard's meta has them: the revision, then the namespaces whose locks are enforced, each
-- with a blank behind it.
CREATE FUNCTION {schema}.enforced_locks() RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(max(revision), 0) || ' '
           || coalesce(string_agg(name || ' ', '' ORDER BY name) FILTER (WHERE locking = 'enforced'), '')
    FROM {schema}.namespace
$$;

-- This records how locks are kept in a namespace, and gives the policies. Nothing changes where it is recorded already,
-- unless somebody has seen a revision above all of ours: Postgres has gone back, and Redis takes only what is newer.
CREATE FUNCTION {schema}.set_locking(p_name text, p_locking text, p_by text, p_seen bigint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    newest bigint;
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    LOCK TABLE {schema}.namespace IN SHARE ROW EXCLUSIVE MODE;
    SELECT coalesce(max(revision), 0) INTO newest FROM {schema}.namespace;
    IF newest < p_seen OR NOT EXISTS (SELECT FROM {schema}.namespace WHERE name = p_name AND locking = p_locking) THEN
        INSERT INTO {schema}.namespace AS n (name, locking, revision, changed_by)
        VALUES (p_name, p_locking, greatest(newest, p_seen) + 1, p_by)
        ON CONFLICT (name) DO UPDATE SET
            locking = excluded.locking, revision = excluded.revision, changed_by = excluded.changed_by, changed_at = now();
    END IF;
    RETURN {schema}.enforced_locks();
END $$;
REVOKE ALL ON FUNCTION {schema}.set_locking(text, text, text, bigint) FROM PUBLIC;
