-- What is kept of history: how far changes have their hashes, and what was erased.
ALTER TABLE {schema}.shard ADD COLUMN hashed bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN {schema}.shard.hashed IS 'Every change up to this n has its hash; behind it are those of an earlier release that workers have not packed yet.';

CREATE TABLE {schema}.erasure (
    key      text COLLATE "C" PRIMARY KEY,
    version  bigint NOT NULL,
    by       text NOT NULL,
    at       timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.erasure IS 'Keys that were erased: up to this version nothing is left of their changes but the change_ids.';

-- Roles that were set up for an earlier schema go on working: whoever may read the changes may read these, whoever may
-- move the watermarks may move what is moved with them, and whoever may add changes may change how they are kept.
DO $$
DECLARE may record;
BEGIN
    FOR may IN SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) AS a
               WHERE c.oid = '{schema}.change'::regclass AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE 'GRANT SELECT ON {schema}.erasure TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
    FOR may IN SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) AS a
               WHERE c.oid = '{schema}.change'::regclass AND a.privilege_type = 'INSERT'
    LOOP
        EXECUTE 'GRANT UPDATE (value, packed, keyframe, size, digest, hash) ON {schema}.change TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
    FOR may IN SELECT DISTINCT a.grantee FROM pg_attribute c, aclexplode(c.attacl) AS a
               WHERE c.attrelid = '{schema}.shard'::regclass AND c.attname = 'flushed' AND a.privilege_type = 'UPDATE'
    LOOP
        EXECUTE 'GRANT UPDATE (hashed) ON {schema}.shard TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
END $$;
