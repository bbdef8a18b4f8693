-- Says how a session of ours stands whose answer does not come: none, where it is gone; else whether it waits for us.
-- With `end`, one that waits in the middle of a transaction is ended, for it may hold rows.
SELECT a.wait_event = 'ClientRead',
       %(end)s AND a.wait_event = 'ClientRead' AND a.state <> 'idle' AND pg_terminate_backend(a.pid)
FROM pg_stat_activity a
WHERE a.pid = %(pid)s AND a.application_name = %(name)s AND a.usename = current_user
