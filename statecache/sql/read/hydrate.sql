-- Gives the last states of keys of one shard as `states` does, each with the shard's epoch and watermark of the same
-- moment, and which of the keys have changes that are lost; where none of the keys has a state, one row with these.
SELECT w.epoch, w.flushed, ARRAY(SELECT DISTINCT l.key FROM {schema}.lost_change l WHERE l.key = ANY (%(keys)s)) AS lost, s.key, s.op, s.value, s.version, s.epoch, s.n, s.change_id, s.parent_change_id, s.encoding,
       s.schema, s.writer, s.updated_at,
       ARRAY(SELECT c.change_id || '@' || c.epoch || '-' || c.n
             FROM (SELECT h.*, row_number() OVER (ORDER BY h.version DESC) AS age FROM {schema}.change h
                   WHERE h.key = s.key AND h.version <= s.version AND h.version > s.version - 6) c
             WHERE c.version = s.version - c.age + 1 ORDER BY c.version DESC) AS recent
FROM {schema}.shard w LEFT JOIN {schema}.state s ON s.key = ANY (%(keys)s) WHERE w.shard = %(shard)s
