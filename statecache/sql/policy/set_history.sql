-- Records what is kept of a namespace's history, whatever was recorded before. COMMIT waits for the disk.
SELECT {schema}.set_history(%(name)s, %(history)s, %(age)s::interval, %(count)s::integer, %(by)s)
FROM set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                                           THEN 'on' ELSE current_setting('synchronous_commit') END, true)
