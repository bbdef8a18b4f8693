-- Keeps a reader's name for its holder, and where it stands if that is given; null where somebody else has it.
-- COMMIT waits for the disk.
SELECT {schema}.keep_consumer(%(name)s, %(holder)s, %(lease)s, %(stands_at)s)
FROM set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                                           THEN 'on' ELSE current_setting('synchronous_commit') END, true)
