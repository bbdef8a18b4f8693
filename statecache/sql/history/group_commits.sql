-- Gives the newest commits of a group that are no later than a position: of each the number of its changes and the first
-- key. Of each key as many changes are looked at as commits are wanted, so a group with a long history costs no more.
SELECT c.epoch, c.n, min(c.at), count(*), min(c.key), min(c.writer), min(c.actor), min(c.reason)
FROM {schema}.state s
CROSS JOIN LATERAL (
    SELECT h.epoch, h.n, h.at, h.key, h.writer, h.actor, h.reason FROM {schema}.change h
    WHERE h.key = s.key AND h.n <= %(n)s
    ORDER BY h.version DESC LIMIT %(most)s) c
WHERE s.key = %(group)s OR (s.key > %(group)s || '/' AND s.key < %(beyond)s)
GROUP BY c.epoch, c.n
ORDER BY c.n DESC
LIMIT %(most)s
