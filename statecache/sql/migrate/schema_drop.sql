-- Remove a replay's own schema with all that it holds; nothing where it was never made.
DROP SCHEMA IF EXISTS {schema} CASCADE
