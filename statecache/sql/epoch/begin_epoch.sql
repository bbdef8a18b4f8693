-- Raises the epochs of the rows that are still as the caller read them.
SELECT shard, epoch, start_n, flushed, entries, bytes, excepted FROM {schema}.begin_epoch(
    %(shards)s::integer[], %(epochs)s::bigint[], %(replids)s::text[], %(seen)s::bigint[], %(last)s::bigint[],
    %(replid)s, %(by)s, %(wait)s)
