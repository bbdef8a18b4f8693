-- The durable tier: current states, every change, the shards' watermarks and epochs, and what could not be taken in.

CREATE TABLE {schema}.cluster (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    id          uuid NOT NULL DEFAULT gen_random_uuid(),
    shards      integer NOT NULL CHECK (shards > 0),
    hash        text NOT NULL,
    group_rule  text NOT NULL,
    prefix      text NOT NULL,
    min_code    integer NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.cluster IS 'What every client and worker must agree on; one row.';

CREATE TABLE {schema}.shard (
    shard         integer PRIMARY KEY,
    epoch         bigint NOT NULL DEFAULT 0,
    replid        text NOT NULL DEFAULT '',
    flushed       bigint NOT NULL DEFAULT 0,
    entries       bigint NOT NULL DEFAULT 0,
    bytes         bigint NOT NULL DEFAULT 0,
    excepted      bigint NOT NULL DEFAULT 0,
    owner         text,
    lease_until   timestamptz,
    flushed_at    timestamptz
) WITH (fillfactor = 20);
COMMENT ON TABLE {schema}.shard IS 'One row a shard: its epoch, its watermark (flushed n) and the worker that flushes it.';

CREATE TABLE {schema}.epoch (
    shard      integer NOT NULL,
    epoch      bigint NOT NULL,
    start_n    bigint NOT NULL,
    replid     text NOT NULL,
    opened_by  text NOT NULL,
    opened_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, epoch)
);
COMMENT ON TABLE {schema}.epoch IS 'Every epoch of every shard; its changes have n > start_n.';

CREATE TABLE {schema}.state (
    key               text COLLATE "C" PRIMARY KEY,
    shard             integer NOT NULL,
    op                text NOT NULL,
    value             bytea NOT NULL,
    version           bigint NOT NULL,
    epoch             bigint NOT NULL,
    n                 bigint NOT NULL,
    change_id         text COLLATE "C" NOT NULL,
    parent_change_id  text COLLATE "C" NOT NULL,
    encoding          text NOT NULL,
    schema            text NOT NULL,
    writer            text NOT NULL,
    updated_at        timestamptz NOT NULL
);
COMMENT ON TABLE {schema}.state IS 'The tip of every key''s chain; a deleted key keeps its row, so that a recreation continues its version.';

CREATE TABLE {schema}.change (
    key               text COLLATE "C" NOT NULL,
    version           bigint NOT NULL,
    change_id         text COLLATE "C" NOT NULL,
    parent_change_id  text COLLATE "C" NOT NULL,
    shard             integer NOT NULL,
    epoch             bigint NOT NULL,
    n                 bigint NOT NULL,
    op                text NOT NULL,
    value             bytea NOT NULL,
    encoding          text NOT NULL,
    schema            text NOT NULL,
    writer            text NOT NULL,
    actor             text NOT NULL,
    reason            text NOT NULL,
    gap               boolean NOT NULL,
    at                timestamptz NOT NULL,
    PRIMARY KEY (key, version),
    UNIQUE (change_id, key)
);
CREATE INDEX change_position ON {schema}.change (shard, n);
COMMENT ON TABLE {schema}.change IS 'Every commit''s write of every state, in the order of its shard; gap = its parent is not here.';

CREATE TABLE {schema}.conflict (
    change_id         text COLLATE "C" NOT NULL,
    key               text COLLATE "C" NOT NULL,
    shard             integer NOT NULL,
    epoch             bigint NOT NULL,
    n                 bigint NOT NULL,
    op                text NOT NULL,
    version           bigint NOT NULL,
    parent_change_id  text COLLATE "C" NOT NULL,
    value             bytea NOT NULL,
    encoding          text NOT NULL,
    schema            text NOT NULL,
    writer            text NOT NULL,
    actor             text NOT NULL,
    reason            text NOT NULL,
    at                timestamptz NOT NULL,
    cause             text NOT NULL,
    recorded_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (change_id, key)
);
CREATE INDEX conflict_position ON {schema}.conflict (shard, n);
COMMENT ON TABLE {schema}.conflict IS 'Changes that did not continue the current lineage, whole, with the cause.';

CREATE TABLE {schema}.quarantine (
    shard        integer NOT NULL,
    epoch        bigint NOT NULL,
    n            bigint NOT NULL,
    change_id    text COLLATE "C" NOT NULL,
    keys         text[] NOT NULL,
    entry        bytea NOT NULL,
    sqlstate     text NOT NULL,
    error        text NOT NULL,
    recorded_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, epoch, n)
);
CREATE INDEX quarantine_change ON {schema}.quarantine (change_id);
CREATE INDEX quarantine_position ON {schema}.quarantine (shard, n);
COMMENT ON TABLE {schema}.quarantine IS 'Stream entries that Postgres refuses for their data; entry = msgpack of the raw fields.';

CREATE TABLE {schema}.worker (
    id          text PRIMARY KEY,
    host        text NOT NULL,
    pid         integer NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    beat_until  timestamptz NOT NULL
);
COMMENT ON TABLE {schema}.worker IS 'The live workers; rows past beat_until are reaped by the others.';

-- This reads a stored value as JSON, or gives null where jsonb refuses it.
CREATE FUNCTION {schema}.json_or_null(value bytea, encoding text) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF encoding <> 'json' THEN
        RETURN NULL;
    END IF;
    RETURN convert_from(value, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
    RETURN NULL;
END $$;

CREATE VIEW {schema}.state_view AS
    SELECT key, epoch, version, CASE WHEN op = 'set' THEN {schema}.json_or_null(value, encoding) END AS value_json,
           op, change_id, parent_change_id, shard, n, encoding, schema, octet_length(value) AS bytes, writer, updated_at
    FROM {schema}.state;

CREATE VIEW {schema}.change_view AS
    SELECT key, version, epoch, CASE WHEN op = 'set' THEN {schema}.json_or_null(value, encoding) END AS value_json,
           op, change_id, parent_change_id, shard, n, encoding, schema, octet_length(value) AS bytes,
           writer, actor, reason, gap, at
    FROM {schema}.change;

-- This raises the epoch of each shard whose row is still as the caller read it, and gives the rows that it raised.
-- With p_wait false, rows that somebody holds are left out. Rows are locked in shard order, as everywhere. p_last is
-- the n up to which the caller's data set and the lineage are the same: the epoch starts there, or at the watermark.
CREATE FUNCTION {schema}.begin_epoch(
    p_shards integer[], p_epochs bigint[], p_replids text[], p_seen bigint[], p_last bigint[],
    p_replid text, p_by text, p_wait boolean
) RETURNS TABLE (shard integer, epoch bigint, start_n bigint, flushed bigint, entries bigint, bytes bigint, excepted bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    locked integer[];
BEGIN
    -- An epoch that Redis is told must be here after a crash, whatever the role's default is.
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF p_wait THEN
        SELECT array_agg(l.shard) INTO locked FROM (
            SELECT s.shard FROM {schema}.shard s WHERE s.shard = ANY (p_shards) ORDER BY s.shard FOR UPDATE) l;
    ELSE
        SELECT array_agg(l.shard) INTO locked FROM (
            SELECT s.shard FROM {schema}.shard s WHERE s.shard = ANY (p_shards) ORDER BY s.shard
            FOR UPDATE SKIP LOCKED) l;
    END IF;
    RETURN QUERY
    WITH asked AS (
        SELECT * FROM unnest(p_shards, p_epochs, p_replids, p_seen, p_last) AS a(shard, epoch, replid, seen, last)
        WHERE a.shard = ANY (locked)
    ), raised AS (
        UPDATE {schema}.shard s
        SET epoch = greatest(s.epoch, a.seen) + 1, replid = p_replid
        FROM asked a
        WHERE s.shard = a.shard AND s.epoch = a.epoch AND s.replid = a.replid
        RETURNING s.shard, s.epoch, greatest(s.flushed, a.last) AS start_n, s.flushed, s.entries, s.bytes, s.excepted
    ), noted AS (
        INSERT INTO {schema}.epoch (shard, epoch, start_n, replid, opened_by)
        SELECT r.shard, r.epoch, r.start_n, p_replid, p_by FROM raised r
    )
    SELECT r.shard, r.epoch, r.start_n, r.flushed, r.entries, r.bytes, r.excepted FROM raised r ORDER BY r.shard;
END $$;
REVOKE ALL ON FUNCTION {schema}.begin_epoch(integer[], bigint[], text[], bigint[], bigint[], text, text, boolean)
    FROM PUBLIC;
