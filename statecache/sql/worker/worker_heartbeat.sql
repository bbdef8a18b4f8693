-- Says that the worker lives, and what hinders it.
INSERT INTO {schema}.worker AS w (id, host, pid, beat_until, avoids, trouble)
VALUES (%(id)s, %(host)s, %(pid)s, now() + %(lease)s, %(avoids)s, %(trouble)s)
ON CONFLICT (id) DO UPDATE SET beat_until = excluded.beat_until, avoids = excluded.avoids, trouble = excluded.trouble
