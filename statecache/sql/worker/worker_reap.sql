-- Removes the rows of workers that are gone, but for those that somebody holds.
DELETE FROM {schema}.worker
WHERE id IN (SELECT id FROM {schema}.worker WHERE beat_until < now() - %(lease)s FOR UPDATE SKIP LOCKED)
RETURNING id
