-- Gives the live workers that tell of trouble, as far as this schema lets them.
SELECT id, w.told ->> 'trouble', coalesce((w.told ->> 'avoids')::integer, 0)
FROM (SELECT id, beat_until, to_jsonb(one) AS told FROM {schema}.worker one) w
WHERE beat_until > now() AND (w.told ->> 'trouble' <> '' OR (w.told ->> 'avoids')::integer > 0) ORDER BY id
