-- Records what is kept of a namespace's history where nothing is recorded of it, and gives what is recorded then.
-- An age comes in seconds. COMMIT waits for the disk.
SELECT history, extract(epoch FROM max_age), max_count, changed_by
FROM {schema}.declare_history(%(name)s, %(history)s, %(age)s::interval, %(count)s::integer, %(by)s),
     set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                                           THEN 'on' ELSE current_setting('synchronous_commit') END, true)
