-- Readers of changes: what came in behind them, from where on changes are kept, and how far each named one has come.

-- A change that is taken out of quarantine stands at its old position, which readers have passed. Each shard numbers
-- these upwards, under the lock of its row.
CREATE TABLE {schema}.late_change (
    shard     integer NOT NULL,
    seq       bigint NOT NULL,
    n         bigint NOT NULL,
    key       text COLLATE "C" NOT NULL,
    version   bigint NOT NULL,
    taken_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, seq)
);
COMMENT ON TABLE {schema}.late_change IS 'Changes that came out of quarantine, behind the watermark; readers of changes get them when they meet them here.';

ALTER TABLE {schema}.shard ADD COLUMN kept_after bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN {schema}.shard.kept_after IS 'Changes up to this n may have been deleted; readers that have not come so far are told. Whoever deletes changes raises it first.';

CREATE TABLE {schema}.consumer (
    name        text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9_.-]{1,64}$'),
    prefix      text NOT NULL,
    stands_at   text NOT NULL CHECK (length(stands_at) <= 1000000),
    holder      text NOT NULL,
    held_until  timestamptz NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.consumer IS 'How far each named reader of changes has come, and which process reads for it; a deleted row begins anew.';

-- This gives a reader's name to a holder, if nobody else has it, and tells who has it, for which prefix and from where on.
CREATE FUNCTION {schema}.take_consumer(
    p_name text, p_prefix text, p_stands_at text, p_holder text, p_lease interval
) RETURNS TABLE (prefix text, stands_at text, holder text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO {schema}.consumer AS c (name, prefix, stands_at, holder, held_until)
    VALUES (p_name, p_prefix, p_stands_at, p_holder, clock_timestamp() + p_lease)
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, held_until = excluded.held_until
    WHERE c.prefix = excluded.prefix AND (c.holder = excluded.holder OR c.held_until <= clock_timestamp());
    RETURN QUERY SELECT c.prefix, c.stands_at, c.holder FROM {schema}.consumer c WHERE c.name = p_name;
END $$;
REVOKE ALL ON FUNCTION {schema}.take_consumer(text, text, text, text, interval) FROM PUBLIC;

-- This keeps a reader's name for its holder, and where it stands if that is given; null where somebody else has it.
CREATE FUNCTION {schema}.keep_consumer(p_name text, p_holder text, p_lease interval, p_stands_at text) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
    UPDATE {schema}.consumer
    SET held_until = clock_timestamp() + p_lease, stands_at = coalesce(p_stands_at, stands_at), changed_at = now()
    WHERE name = p_name AND holder = p_holder
    RETURNING true
$$;
REVOKE ALL ON FUNCTION {schema}.keep_consumer(text, text, interval, text) FROM PUBLIC;

-- Roles that were set up for an earlier schema go on working: whoever may read the changes may read these, and whoever
-- may begin epochs may be a named reader.
DO $$
DECLARE may record;
BEGIN
    FOR may IN SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) AS a
               WHERE c.oid = '{schema}.change'::regclass AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE 'GRANT SELECT ON {schema}.late_change, {schema}.consumer TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
    FOR may IN SELECT DISTINCT a.grantee FROM pg_proc p, aclexplode(p.proacl) AS a
               WHERE p.oid = '{schema}.begin_epoch(integer[], bigint[], text[], bigint[], bigint[], text, text, boolean)'::regprocedure
                     AND a.privilege_type = 'EXECUTE'
    LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION {schema}.take_consumer(text, text, text, text, interval), '
                || '{schema}.keep_consumer(text, text, interval, text) TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
END $$;
