-- Lost changes by name: whoever repeats one later is told, wherever else it is forgotten by then.

CREATE TABLE {schema}.lost_change (
    change_id    text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    shard        integer NOT NULL,
    epoch        bigint NOT NULL,
    n            bigint NOT NULL,
    reported_by  text NOT NULL,
    reported_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (change_id, key)
);
CREATE INDEX lost_change_key ON {schema}.lost_change (key);
COMMENT ON TABLE {schema}.lost_change IS 'Changes at positions that are lost in a gap, as far as a state or a writer still knew them. What came later may build on them, so a repeat is refused.';

-- Whoever may read the changes may read these: roles that were set up for an earlier schema go on working.
DO $$
DECLARE reader record;
BEGIN
    FOR reader IN SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) AS a
                  WHERE c.oid = '{schema}.change'::regclass AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE 'GRANT SELECT ON {schema}.lost_change TO '
                || CASE reader.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(reader.grantee)) END;
    END LOOP;
END $$;

-- This takes positions that somebody was acknowledged, or has seen, and records those that have died: a later epoch of
-- their shard began before them. It gives those, with the epoch that ended each, whether the change is in the lineage all
-- the same, for it was applied again, and whether it is kept in conflict. A change_id or key may be ''. Of positions that
-- are lost in a gap it keeps the changes.
CREATE OR REPLACE FUNCTION {schema}.report_lost(
    p_shards integer[], p_epochs bigint[], p_ns bigint[], p_change_ids text[], p_keys text[], p_by text
) RETURNS TABLE (shard integer, epoch bigint, n bigint, change_id text, key text, ended_by bigint, start_n bigint, applied boolean,
              kept boolean)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    INSERT INTO {schema}.lost_change (change_id, key, shard, epoch, n, reported_by)
    SELECT t.change_id, t.key, t.shard, t.epoch, t.n, p_by
    FROM unnest(p_shards, p_epochs, p_ns, p_change_ids, p_keys) AS t (shard, epoch, n, change_id, key)
    WHERE t.change_id <> '' AND t.key <> ''
          AND EXISTS (SELECT FROM {schema}.lost l WHERE l.shard = t.shard AND l.cause = 'gap' AND l.epoch >= t.epoch
                                                        AND t.n BETWEEN l.first_n AND l.last_n)
          AND NOT EXISTS (SELECT FROM {schema}.epoch e
                          WHERE e.shard = t.shard AND e.epoch > t.epoch AND e.start_n < t.n)
          AND NOT EXISTS (SELECT FROM {schema}.change c WHERE c.change_id = t.change_id AND c.key = t.key)
    ORDER BY t.change_id, t.key
    ON CONFLICT DO NOTHING;
    RETURN QUERY
    WITH died AS MATERIALIZED (
        SELECT t.shard, t.epoch, t.n, t.change_id, t.key, e.epoch AS ended_by, e.start_n
        FROM unnest(p_shards, p_epochs, p_ns, p_change_ids, p_keys) AS t (shard, epoch, n, change_id, key)
        CROSS JOIN LATERAL (
            SELECT e.epoch, e.start_n FROM {schema}.epoch e
            WHERE e.shard = t.shard AND e.epoch > t.epoch AND e.start_n < t.n ORDER BY e.epoch LIMIT 1) e
    ), recorded AS (
        INSERT INTO {schema}.lost AS l (shard, epoch, first_n, last_n, cause, positions, keys, reported_by)
        SELECT d.shard, d.ended_by, d.start_n + 1, max(d.n), 'tail', max(d.n) - d.start_n,
               coalesce((array_agg(DISTINCT d.key) FILTER (WHERE d.key <> ''))[1:20], '{}'), p_by
        FROM died d GROUP BY d.shard, d.ended_by, d.start_n ORDER BY d.shard, d.ended_by
        ON CONFLICT (shard, epoch, first_n, cause) DO UPDATE SET
            last_n = greatest(l.last_n, excluded.last_n), positions = greatest(l.positions, excluded.positions),
            keys = ARRAY(SELECT DISTINCT k FROM unnest(l.keys || excluded.keys) AS k ORDER BY k LIMIT 20),
            reported_by = excluded.reported_by, reported_at = now()
        WHERE excluded.last_n > l.last_n OR (cardinality(l.keys) < 20 AND NOT excluded.keys <@ l.keys)
    )
    SELECT d.shard, d.epoch, d.n, d.change_id, d.key, d.ended_by, d.start_n,
           EXISTS (SELECT FROM {schema}.change c WHERE c.change_id = d.change_id),
           EXISTS (SELECT FROM {schema}.conflict c WHERE c.change_id = d.change_id)
           OR EXISTS (SELECT FROM {schema}.quarantine q WHERE q.change_id = d.change_id)
    FROM died d ORDER BY d.shard, d.n;
END $$;
