-- Makes the schema and the table of what was applied, where they are not there yet.
DO $$
BEGIN
    IF to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
    IF to_regclass('{schema}.migration') IS NULL THEN
        CREATE TABLE {schema}.migration (
            number      integer PRIMARY KEY,
            name        text NOT NULL,
            applied_at  timestamptz NOT NULL DEFAULT now()
        );
        COMMENT ON TABLE {schema}.migration IS 'The numbered steps that this schema has been through.';
    END IF;
END $$
