-- Gives what readers of changes have not had yet, of one moment. First a row for each shard, in whose last column stand
-- its epoch and watermark, the n up to which changes may have been deleted, the least n at which an epoch began that is
-- later than the reader's, the n from which on nothing was looked at for lack of room, and the newest number of late
-- changes and the one that was looked at last. Then late changes at positions that the reader has passed, each with its
-- number; then the others. A change is given with its place in its commit, its hash and the one before it, and without its
-- value where the values before it are too many bytes. Where Postgres went back behind the reader's epoch, there is nothing for it yet.
WITH head AS MATERIALIZED (
    SELECT a.*, s.epoch AS lineage, s.flushed, s.kept_after,
           CASE WHEN s.epoch > a.epoch THEN (SELECT min(e.start_n) FROM {schema}.epoch e
                                             WHERE e.shard = a.shard AND e.epoch > a.epoch) END AS start_n,
           CASE WHEN s.epoch >= a.epoch THEN s.flushed ELSE 0 END AS upto,
           (SELECT c.n FROM {schema}.change c WHERE c.shard = a.shard AND c.n >= a.n AND c.n <= s.flushed
            ORDER BY c.n OFFSET %(rows)s LIMIT 1) AS cut_at,
           (SELECT coalesce(max(l.seq), 0) FROM {schema}.late_change l WHERE l.shard = a.shard) AS newest
    FROM unnest(%(shards)s::integer[], %(epochs)s::bigint[], %(ns)s::bigint[], %(parts)s::integer[], %(lates)s::bigint[])
         AS a (shard, epoch, n, part, late)
    JOIN {schema}.shard s ON s.shard = a.shard
), late AS MATERIALIZED (
    SELECT h.n AS from_n, l.* FROM head h CROSS JOIN LATERAL (
        SELECT l.shard, l.seq, l.n, l.key, l.version FROM {schema}.late_change l
        WHERE l.shard = h.shard AND l.seq > h.late AND h.lineage >= h.epoch
        ORDER BY l.seq LIMIT %(late)s) l
)
SELECT h.shard, NULL AS n, NULL AS part, NULL AS late, NULL AS key, NULL AS op, NULL AS value, NULL AS version,
       NULL AS epoch, NULL AS change_id, NULL AS parent_change_id, NULL AS encoding, NULL AS schema, NULL AS writer,
       NULL AS actor, NULL AS reason, NULL AS at, NULL AS fits,
       ARRAY[h.lineage, h.flushed, h.kept_after, h.start_n, h.cut_at, h.newest,
             (SELECT max(l.seq) FROM late l WHERE l.shard = h.shard)] AS head,
       NULL AS packed, NULL AS keyframe, NULL AS digest, NULL AS hash, NULL AS hash_before
FROM head h
UNION ALL
SELECT l.shard, c.n, 0, l.seq, c.key, c.op, c.value, c.version, c.epoch, c.change_id, c.parent_change_id, c.encoding,
       c.schema, c.writer, c.actor, c.reason, c.at, true, NULL, c.packed, c.keyframe, c.digest, c.hash,
       (SELECT h.hash FROM {schema}.change h WHERE h.key = c.key AND h.version = c.version - 1)
FROM late l JOIN {schema}.change c ON c.key = l.key AND c.version = l.version
WHERE l.n < l.from_n AND l.key >= %(prefix)s AND l.key < %(beyond)s
UNION ALL
SELECT shard, n, part, 0, key, op, CASE WHEN fits THEN value END, version, epoch, change_id, parent_change_id, encoding,
       schema, writer, actor, reason, at, fits, NULL, CASE WHEN fits THEN packed END, keyframe, digest, hash,
       CASE WHEN fits THEN (SELECT h.hash FROM {schema}.change h WHERE h.key = c.key AND h.version = c.version - 1) END
FROM (SELECT *, sum(weight) OVER (ORDER BY shard, n, part) - weight < %(bytes)s AS fits
      FROM (SELECT c.*, h.n AS from_n, h.part AS from_part, coalesce(c.size, octet_length(c.value), 0) AS weight,
                   row_number() OVER (PARTITION BY c.shard, c.n ORDER BY c.key) AS part
            FROM head h CROSS JOIN LATERAL (
                SELECT c.key, c.version, c.change_id, c.parent_change_id, c.shard, c.epoch, c.n, c.op, c.value,
                       c.encoding, c.schema, c.writer, c.actor, c.reason, c.at, c.packed, c.keyframe, c.size,
                       c.digest, c.hash
                FROM {schema}.change c
                WHERE c.shard = h.shard AND c.n >= h.n AND c.n <= h.upto AND c.n < coalesce(h.cut_at, h.upto + 1)
                ORDER BY c.n LIMIT %(rows)s) c) scanned
      WHERE key >= %(prefix)s AND key < %(beyond)s AND (n > from_n OR part > from_part)) c
