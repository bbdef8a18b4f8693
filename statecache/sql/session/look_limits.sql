-- Bounds one transaction that only looks for rows by their keys, and gives, last, whether the server is a standby.
SELECT set_config('statement_timeout', %(statement)s, true), pg_is_in_recovery()
