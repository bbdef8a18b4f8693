-- Workers: what hinders one, for whoever looks, and how many shards it leaves to the others, for those who share them out.

ALTER TABLE {schema}.worker
    ADD COLUMN avoids   integer NOT NULL DEFAULT 0,
    ADD COLUMN trouble  text NOT NULL DEFAULT '';
COMMENT ON COLUMN {schema}.worker.avoids IS 'How many shards it could not serve and leaves to the others.';
COMMENT ON COLUMN {schema}.worker.trouble IS 'What hinders it, as of its last heartbeat.';
