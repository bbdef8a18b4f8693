-- Locks: what a holder that had lost its lock to another one wrote is refused here too.

CREATE TABLE {schema}.lock_token (
    key    text COLLATE "C" PRIMARY KEY,
    epoch  bigint NOT NULL,
    count  bigint NOT NULL
) WITH (fillfactor = 70);
COMMENT ON TABLE {schema}.lock_token IS 'The newest fencing token that a flushed commit has shown of each locked key; commits with an older one fork.';
