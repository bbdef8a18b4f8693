-- Records which of these positions have died, and says what became of their changes; where the transaction is read-only,
-- as by the role's default, it only says so. Of what has a change_id it says also which positions Postgres has passed in
-- their lineage without holding them whole: the epoch is their own then. What stood there in a branch is kept.
SELECT shard, epoch, n, change_id, key, ended_by, start_n, applied, kept FROM {schema}.report_lost(
    %(shards)s::integer[], %(epochs)s::bigint[], %(ns)s::bigint[], %(change_ids)s::text[], %(keys)s::text[], %(by)s)
WHERE current_setting('transaction_read_only') = 'off'
UNION ALL
SELECT a.shard, a.epoch, a.n, a.change_id, a.key, e.epoch, e.start_n,
       EXISTS (SELECT FROM {schema}.change c WHERE c.change_id = a.change_id),
       EXISTS (SELECT FROM {schema}.conflict c WHERE c.change_id = a.change_id)
       OR EXISTS (SELECT FROM {schema}.quarantine q WHERE q.change_id = a.change_id)
FROM unnest(%(shards)s::integer[], %(epochs)s::bigint[], %(ns)s::bigint[], %(change_ids)s::text[], %(keys)s::text[])
     AS a (shard, epoch, n, change_id, key)
CROSS JOIN LATERAL (SELECT e.epoch, e.start_n FROM {schema}.epoch e
                    WHERE e.shard = a.shard AND e.epoch > a.epoch AND e.start_n < a.n ORDER BY e.epoch LIMIT 1) e
WHERE current_setting('transaction_read_only') = 'on'
UNION ALL
SELECT a.shard, a.epoch, a.n, a.change_id, a.key, a.epoch, a.n, false,
       EXISTS (SELECT FROM {schema}.conflict c WHERE c.change_id = a.change_id)
FROM unnest(%(shards)s::integer[], %(epochs)s::bigint[], %(ns)s::bigint[], %(change_ids)s::text[], %(keys)s::text[])
     AS a (shard, epoch, n, change_id, key)
JOIN {schema}.shard s ON s.shard = a.shard AND s.flushed >= a.n
WHERE a.change_id <> ''
  AND NOT EXISTS (SELECT FROM {schema}.epoch e WHERE e.shard = a.shard AND e.epoch > a.epoch AND e.start_n < a.n)
  AND NOT EXISTS (SELECT FROM {schema}.change c
                  WHERE c.change_id = a.change_id
                        AND NOT EXISTS (SELECT FROM {schema}.lost l
                                        WHERE l.shard = c.shard AND l.epoch >= c.epoch
                                              AND c.n BETWEEN l.first_n AND l.last_n AND l.cause = 'gap'
                                              AND l.keys <> '{}' AND l.positions = l.last_n - l.first_n + 1))
  AND NOT EXISTS (SELECT FROM {schema}.conflict c WHERE c.change_id = a.change_id AND c.cause <> 'branch')
  AND NOT EXISTS (SELECT FROM {schema}.quarantine q WHERE q.change_id = a.change_id)
