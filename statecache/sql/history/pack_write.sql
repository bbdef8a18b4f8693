-- Gives changes the form in which they are kept from now on, where `packs` says so, and their hashes, and moves the place
-- up to which all have theirs: all of it, where each is still as it was read, and none other has come up to there.
WITH batch AS MATERIALIZED (
    SELECT * FROM unnest(%(key)s, %(version)s, %(change_id)s, %(packs)s, %(packed)s, %(keyframe)s, %(size)s, %(digest)s,
                         %(hash)s)
    AS b (key, version, change_id, packs, packed, keyframe, size, digest, hash)
), written AS (
    UPDATE {schema}.change c
    SET value = CASE WHEN b.packs AND b.packed IS NOT NULL THEN NULL ELSE c.value END,
        packed = CASE WHEN b.packs THEN b.packed ELSE c.packed END,
        keyframe = CASE WHEN b.packs THEN b.keyframe ELSE c.keyframe END,
        size = CASE WHEN b.packs THEN b.size ELSE c.size END, digest = b.digest, hash = b.hash
    FROM batch b
    WHERE c.key = b.key AND c.version = b.version AND c.change_id = b.change_id AND c.hash IS NULL
          AND CASE WHEN b.packs THEN c.digest IS NULL AND c.value IS NOT NULL ELSE c.digest = b.digest END
    RETURNING 1
), lacking AS (
    SELECT count(*) AS count FROM {schema}.change
    WHERE shard = %(shard)s AND n > %(begin)s AND n <= %(upto)s AND hash IS NULL
          AND (digest IS NOT NULL OR value IS NOT NULL)
), moved AS (
    UPDATE {schema}.shard SET hashed = %(upto)s WHERE shard = %(shard)s AND hashed = %(begin)s RETURNING 1
)
SELECT (SELECT count(*) FROM written), (SELECT count FROM lacking), (SELECT count(*) FROM moved)
