-- Tells where parked changes would stand: the tip of the key's chain, what is at their version, which parent the
-- change behind it names, and whether their own parent is in the chain, with its hash.
SELECT a.key, s.version, s.change_id, s.op, here.change_id, behind.parent_change_id, p.key IS NOT NULL, p.hash
FROM unnest(%(keys)s::text[], %(versions)s::bigint[], %(parents)s::text[]) AS a (key, version, parent_change_id)
LEFT JOIN {schema}.state s ON s.key = a.key
LEFT JOIN {schema}.change here ON here.key = a.key AND here.version = a.version
LEFT JOIN {schema}.change p ON p.key = a.key AND p.version = a.version - 1 AND p.change_id = a.parent_change_id
LEFT JOIN {schema}.change behind ON behind.key = a.key AND behind.version = a.version + 1
