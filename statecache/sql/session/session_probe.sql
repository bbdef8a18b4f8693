-- Says how a session of ours stands whose answer does not come: none, where it is gone; else whether it waits for us.
-- With `end`, one that waits in the middle of a transaction is ended, for it may hold rows, unless a pooler has given it
-- to somebody else. Whose it is, its login role tells, whatever role it has taken on, and the name that it was given, to
-- which a pooler may add the client's address. Who is not known by these is not gone for that.
SELECT a.wait_event = 'ClientRead',
       %(end)s AND a.wait_event = 'ClientRead' AND a.state <> 'idle' AND a.usename = session_user
       AND starts_with(a.application_name || ' - ', %(name)s || ' - ') AND pg_terminate_backend(a.pid)
FROM pg_stat_activity a
WHERE a.pid = %(pid)s
