-- Gives every shard's epochs with the position after which each began.
SELECT shard, epoch, start_n FROM {schema}.epoch ORDER BY shard, epoch
