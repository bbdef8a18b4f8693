-- What is parked and would have forked is a fork: what is committed behind it does not continue its keys' chains.
ALTER TABLE {schema}.quarantine ADD COLUMN forked boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN {schema}.quarantine.forked IS 'Whether it would have been set aside as a conflict, as what descends from it is.';
