-- Takes a reader's name for a while, if nobody else has it, and tells who has it, for which prefix and from where on.
-- COMMIT waits for the disk.
SELECT prefix, stands_at, holder
FROM {schema}.take_consumer(%(name)s, %(prefix)s, %(stands_at)s, %(holder)s, %(lease)s),
     set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                                           THEN 'on' ELSE current_setting('synchronous_commit') END, true)
