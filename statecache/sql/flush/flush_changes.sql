-- Adds changes to their chains and moves the tips: each key's last change is marked, in key order, forward only. A value
-- is given of those, and where it is kept plain. Where a change's is not stored, it stands in the state alone.
-- Unless all are taken it fails, so that nothing is committed behind it: a setting is asked for that does not exist, with
-- the counts in its name.
WITH batch AS MATERIALIZED (
    SELECT * FROM unnest(%(key)s, %(version)s, %(change_id)s, %(parent_change_id)s, %(shard)s, %(epoch)s, %(n)s,
                         %(op)s, %(value)s, %(encoding)s, %(schema)s, %(writer)s, %(actor)s, %(reason)s, %(gap)s,
                         %(at)s, %(last)s, %(packed)s, %(keyframe)s, %(size)s, %(digest)s, %(hash)s, %(stored)s)
    AS b (key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding, schema, writer, actor,
          reason, gap, at, last, packed, keyframe, size, digest, hash, stored)
), added AS (
    INSERT INTO {schema}.change (key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding,
                                 schema, writer, actor, reason, gap, at, packed, keyframe, size, digest, hash)
    SELECT key, version, change_id, parent_change_id, shard, epoch, n, op, CASE WHEN stored AND packed IS NULL THEN value END,
           encoding, schema, writer, actor, reason, gap, at, packed, keyframe, size, digest, hash
    FROM batch
    RETURNING 1
), moved AS (
    INSERT INTO {schema}.state AS s (key, shard, op, value, version, epoch, n, change_id, parent_change_id, encoding,
                                     schema, writer, updated_at)
    SELECT key, shard, op, value, version, epoch, n, change_id, parent_change_id, encoding, schema, writer, at
    FROM batch WHERE last ORDER BY key
    ON CONFLICT (key) DO UPDATE SET
        op = excluded.op, value = excluded.value, version = excluded.version, epoch = excluded.epoch, n = excluded.n,
        change_id = excluded.change_id, parent_change_id = excluded.parent_change_id, encoding = excluded.encoding,
        schema = excluded.schema, writer = excluded.writer, updated_at = excluded.updated_at
    WHERE (excluded.epoch, excluded.version) > (s.epoch, s.version)
    RETURNING 1
)
SELECT CASE WHEN added <> sent OR moved <> keys
            THEN current_setting(format('statecache.took_%%s_of_%%s_changes_of_%%s_of_%%s_keys', added, sent, moved, keys))
       END
FROM (SELECT (SELECT count(*) FROM batch), (SELECT count(*) FROM batch WHERE last),
             (SELECT count(*) FROM added), (SELECT count(*) FROM moved)) AS c (sent, keys, added, moved)
