-- Notes that an entry was given up; it stays, for its place in the shard is an exception for ever.
UPDATE {schema}.quarantine
SET error = 'dropped at ' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ' ' || %(about)s
            || '; parked for ' || sqlstate || ': ' || error,
    sqlstate = 'dropped'
WHERE shard = %(shard)s AND epoch = %(epoch)s AND n = %(n)s AND sqlstate <> 'dropped'
