-- This gives where each epoch after the data set's own began, up to the one being opened.
SELECT start_n FROM {schema}.epoch WHERE shard = %(shard)s AND epoch > %(epoch)s AND epoch < %(opening)s ORDER BY epoch
