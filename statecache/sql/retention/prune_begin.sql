-- Has a transaction wait for nobody long, and its commit not for the disk: what it does may be done again.
SELECT set_config('lock_timeout', '300ms', true), set_config('synchronous_commit', 'off', true)
