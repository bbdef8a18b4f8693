-- States that end: the moment stands behind the encoding of a value (`json until 1795489200123`, in ms since 1970), in
-- every place that has the value. Those that end are found by it; deleted ones have none.
CREATE INDEX state_end ON {schema}.state (right(encoding, 13) COLLATE "C")
    WHERE op = 'set' AND encoding LIKE '% until %';

CREATE OR REPLACE FUNCTION {schema}.json_or_null(value bytea, encoding text) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF encoding <> 'json' AND encoding NOT LIKE 'json until %' THEN
        RETURN NULL;
    END IF;
    RETURN convert_from(value, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
    RETURN NULL;
END $$;

CREATE OR REPLACE VIEW {schema}.state_view AS
    SELECT key, epoch, version, CASE WHEN op = 'set' THEN {schema}.json_or_null(value, encoding) END AS value_json,
           op, change_id, parent_change_id, shard, n, encoding, schema, octet_length(value) AS bytes, writer, updated_at,
           CASE WHEN encoding ~ ' until [0-9]{13}$' THEN to_timestamp(right(encoding, 13)::double precision / 1000)
           END AS expires_at
    FROM {schema}.state;

CREATE OR REPLACE VIEW {schema}.change_view AS
    SELECT key, version, epoch, CASE WHEN op = 'set' THEN {schema}.json_or_null(value, encoding) END AS value_json,
           op, change_id, parent_change_id, shard, n, encoding, schema, octet_length(value) AS bytes,
           writer, actor, reason, gap, at,
           CASE WHEN encoding ~ ' until [0-9]{13}$' THEN to_timestamp(right(encoding, 13)::double precision / 1000)
           END AS expires_at
    FROM {schema}.change;
