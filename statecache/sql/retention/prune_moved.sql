-- Tells the flusher of a shard that keyframes of keys' last runs have moved, so that what it remembers of them no longer
-- counts; it waits for one that is writing. Nothing is written to the shard from here to COMMIT.
UPDATE {schema}.shard SET moved_keyframes = moved_keyframes + 1 WHERE shard = %(shard)s
