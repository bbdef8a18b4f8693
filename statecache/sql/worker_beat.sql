-- This says that the worker lives.
INSERT INTO {schema}.worker AS w (id, host, pid, beat_until) VALUES (%(id)s, %(host)s, %(pid)s, now() + %(lease)s)
ON CONFLICT (id) DO UPDATE SET beat_until = excluded.beat_until
