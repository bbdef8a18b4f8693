-- History that is small: a change's value is kept whole, compressed, or as what parts it from the change before it.
--
-- `value` holds it whole, as it was; where that is null, `packed` does, whose first byte says how: w for a whole value,
-- d for a delta to the version before, o for a delta to the change that the table `branch` names. Reading begins at the
-- version `keyframe`. Where both are null and `op` is set, the value is no longer kept; the tip's stands in `state`.
ALTER TABLE {schema}.change ALTER COLUMN value DROP NOT NULL;
ALTER TABLE {schema}.change ADD COLUMN packed bytea, ADD COLUMN keyframe bigint, ADD COLUMN size integer,
    ADD COLUMN digest bytea, ADD COLUMN hash bytea;
ALTER TABLE {schema}.change ALTER COLUMN packed SET STORAGE EXTERNAL;
COMMENT ON COLUMN {schema}.change.packed IS 'The value compressed (w), as a delta to the version before (d) or to its origin in another key (o); null where value has it.';
COMMENT ON COLUMN {schema}.change.keyframe IS 'The version at which reading begins; its own where null.';
COMMENT ON COLUMN {schema}.change.size IS 'The bytes of the value; null for changes of before.';
COMMENT ON COLUMN {schema}.change.digest IS 'SHA-256 of the value; null for changes of before.';
COMMENT ON COLUMN {schema}.change.hash IS 'SHA-256 over the hash of the change before it, what this one says, and digest; null until it is reckoned.';

-- Values that are not compressed take less of the flusher's time with lz4, where this Postgres has it.
DO $$
BEGIN
    ALTER TABLE {schema}.state ALTER COLUMN value SET COMPRESSION lz4;
    ALTER TABLE {schema}.change ALTER COLUMN value SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported OR invalid_parameter_value THEN
    NULL;
END $$;

-- Where a key's history begins in another key's.
CREATE TABLE {schema}.branch (
    key               text COLLATE "C" NOT NULL,
    version           bigint NOT NULL,
    origin            text COLLATE "C" NOT NULL,
    origin_version    bigint NOT NULL,
    origin_change_id  text COLLATE "C" NOT NULL,
    at                timestamptz NOT NULL,
    PRIMARY KEY (key, version)
);
CREATE INDEX branch_origin ON {schema}.branch (origin, origin_version);
COMMENT ON TABLE {schema}.branch IS 'Which change of another key a key''s change was made from: a branch began with it, or was merged.';

CREATE OR REPLACE VIEW {schema}.change_view AS
    SELECT key, version, epoch,
           CASE WHEN op = 'set' AND value IS NOT NULL THEN {schema}.json_or_null(value, encoding) END AS value_json,
           op, change_id, parent_change_id, shard, n, encoding, schema, coalesce(size, octet_length(value)) AS bytes,
           writer, actor, reason, gap, at,
           CASE WHEN encoding ~ ' until [0-9]{13}$' THEN to_timestamp(right(encoding, 13)::double precision / 1000)
           END AS expires_at,
           CASE WHEN value IS NOT NULL THEN 'plain' WHEN packed IS NULL THEN 'not kept'
                WHEN get_byte(packed, 0) = 119 THEN 'whole' ELSE 'delta' END AS kept,
           octet_length(coalesce(packed, value)) AS stored_bytes, encode(digest, 'hex') AS sha256
    FROM {schema}.change;

-- Roles that were set up for an earlier schema go on working: whoever may read the changes may read where they begin,
-- and whoever may write them may write that.
DO $$
DECLARE may record;
BEGIN
    FOR may IN SELECT DISTINCT a.grantee, a.privilege_type FROM pg_class c, aclexplode(c.relacl) AS a
               WHERE c.oid = '{schema}.change'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE 'GRANT ' || may.privilege_type || ' ON {schema}.branch TO '
                || CASE may.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(may.grantee)) END;
    END LOOP;
END $$;
