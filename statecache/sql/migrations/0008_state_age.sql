-- The states of a namespace by the time of their last change, so that the newest or the oldest ones are found at once.
CREATE INDEX state_age ON {schema}.state (split_part(key, '/', 1), updated_at, key);
