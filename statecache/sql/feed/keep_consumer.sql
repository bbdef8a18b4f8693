-- Keeps a reader's name for its holder, and where it stands if that is given; null where somebody else has it.
SELECT {schema}.keep_consumer(%(name)s, %(holder)s, %(lease)s, %(stands_at)s)
