-- Notes that an entry is being given up, so that nobody takes it in meanwhile; one that was begun before stays so.
UPDATE {schema}.quarantine SET sqlstate = 'dropping ' || sqlstate
WHERE shard = %(shard)s AND epoch = %(epoch)s AND n = %(n)s AND NOT starts_with(sqlstate, 'dropping ')
