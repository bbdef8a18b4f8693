-- Notes that an entry that was being given up is given up, and gives it if so; it stays, for its place in the shard is
-- an exception for ever.
UPDATE {schema}.quarantine
SET error = 'dropped at ' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ' ' || %(about)s
            || '; parked for ' || substr(sqlstate, length('dropping ') + 1) || ': ' || error,
    sqlstate = 'dropped'
WHERE shard = %(shard)s AND epoch = %(epoch)s AND n = %(n)s AND starts_with(sqlstate, 'dropping ')
RETURNING shard
