-- Gives of spans of versions of keys those in which versions are missing, and how many.
SELECT a.key, a.first, a.last, a.last - a.first + 1 - count(c.version) AS missing
FROM unnest(%(keys)s::text[], %(firsts)s::bigint[], %(lasts)s::bigint[]) AS a (key, first, last)
LEFT JOIN {schema}.change c ON c.key = a.key AND c.version BETWEEN a.first AND a.last
GROUP BY a.key, a.first, a.last HAVING count(c.version) < a.last - a.first + 1
ORDER BY a.key, a.first
