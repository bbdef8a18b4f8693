-- Has what was written behind the last changes of runs, meanwhile, be read from where these are read now; gives the runs.
UPDATE {schema}.change c SET keyframe = r.now
FROM unnest(%(keys)s, %(lasts)s, %(before)s, %(now)s) AS r (key, last, before, now)
WHERE c.key = r.key AND c.version > r.last AND c.keyframe = r.before
RETURNING c.key, c.version
