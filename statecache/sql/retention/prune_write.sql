-- Changes how values are kept: not at all, by themselves, or as before but read from another keyframe on. Gives how many.
WITH written AS (
    UPDATE {schema}.change c
    SET value = CASE WHEN b.how = 'moved' THEN c.value ELSE b.value END,
        packed = CASE WHEN b.how = 'moved' THEN c.packed ELSE b.packed END, keyframe = b.keyframe
    FROM unnest(%(key)s, %(version)s, %(how)s, %(value)s, %(packed)s, %(keyframe)s)
         AS b (key, version, how, value, packed, keyframe)
    WHERE c.key = b.key AND c.version = b.version AND (c.value IS NOT NULL OR c.packed IS NOT NULL)
    RETURNING 1
)
SELECT count(*) FROM written
