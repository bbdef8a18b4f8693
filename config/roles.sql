-- The Postgres roles of statecache and their rights. For psql, as a superuser or as the database's owner with CREATEROLE,
-- once before the first `statecache migrate` (it makes the owner) and after every one (it grants what is new):
--
--     psql --no-psqlrc --set ON_ERROR_STOP=1 --file config/roles.sql postgresql://postgres@…/statecache
--
-- It may be repeated at any time, at work too: all of it is one transaction, which ends with exactly these rights.
-- Passwords come from POSTGRES_MIGRATE_PASSWORD, POSTGRES_WORKER_PASSWORD, POSTGRES_AGENT_PASSWORD and
-- POSTGRES_INSPECTOR_PASSWORD; where one is not set, that of before stays, and without any nobody can log in.
-- The schema is STATECACHE_POSTGRES_SCHEMA, or statecache.

\set ON_ERROR_STOP on
\set schema statecache
\getenv schema STATECACHE_POSTGRES_SCHEMA
\set migrate ''
\getenv migrate POSTGRES_MIGRATE_PASSWORD
\set worker ''
\getenv worker POSTGRES_WORKER_PASSWORD
\set agent ''
\getenv agent POSTGRES_AGENT_PASSWORD
\set inspector ''
\getenv inspector POSTGRES_INSPECTOR_PASSWORD

BEGIN;
SET LOCAL client_min_messages = warning;
\o /dev/null
SELECT pg_advisory_xact_lock(hashtextextended('statecache roles', 0));

-- No password reaches the log of a server that logs what is slow or fails.
SELECT set_config(name, value, true)
FROM (VALUES ('log_statement', 'none'), ('log_min_duration_statement', '-1'), ('log_min_error_statement', 'panic'))
    AS s (name, value)
WHERE (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
\o

SELECT format('CREATE ROLE %I LOGIN', name)
FROM (VALUES ('statecache_migrate'), ('statecache_worker'), ('statecache_agent'), ('statecache_inspector')) AS r (name)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name)
\gexec
SELECT format('ALTER ROLE %I PASSWORD %L', name, password)
FROM (VALUES ('statecache_migrate', :'migrate'), ('statecache_worker', :'worker'), ('statecache_agent', :'agent'),
             ('statecache_inspector', :'inspector')) AS r (name, password)
WHERE password <> ''
\gexec

-- The owner of the schema and of all in it: it migrates and nothing else. begin_epoch() runs with its rights. Whoever
-- is no superuser must be a member to hand things over to it.
SELECT 'GRANT statecache_migrate TO CURRENT_USER'
WHERE NOT pg_has_role(current_user, 'statecache_migrate', 'USAGE')
\gexec
CREATE SCHEMA IF NOT EXISTS :"schema" AUTHORIZATION statecache_migrate;
SELECT format('ALTER SCHEMA %I OWNER TO statecache_migrate', nspname)
FROM pg_namespace WHERE nspname = :'schema' AND nspowner <> 'statecache_migrate'::regrole
UNION ALL
SELECT format('ALTER %s %s OWNER TO statecache_migrate', CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass)
FROM pg_class
WHERE relnamespace = to_regnamespace(quote_ident(:'schema')) AND relkind IN ('r', 'p', 'v')
      AND relowner <> 'statecache_migrate'::regrole
UNION ALL
SELECT format('ALTER FUNCTION %s OWNER TO statecache_migrate', oid::regprocedure)
FROM pg_proc
WHERE pronamespace = to_regnamespace(quote_ident(:'schema')) AND proowner <> 'statecache_migrate'::regrole
\gexec

GRANT CONNECT ON DATABASE :"DBNAME" TO statecache_migrate, statecache_worker, statecache_agent, statecache_inspector;
GRANT USAGE ON SCHEMA :"schema" TO statecache_worker, statecache_agent, statecache_inspector;

-- Everybody reads. What was granted otherwise is taken back first.
REVOKE ALL ON ALL TABLES IN SCHEMA :"schema" FROM statecache_worker, statecache_agent, statecache_inspector;
GRANT SELECT ON ALL TABLES IN SCHEMA :"schema" TO statecache_worker, statecache_agent, statecache_inspector;
ALTER DEFAULT PRIVILEGES FOR ROLE statecache_migrate IN SCHEMA :"schema" -- what a later migration makes, from its first moment
    GRANT SELECT ON TABLES TO statecache_worker, statecache_agent, statecache_inspector;
ALTER ROLE statecache_inspector SET default_transaction_read_only = on;
ALTER ROLE statecache_inspector SET statement_timeout = '60s';

SELECT to_regclass(format('%I.shard', :'schema')) IS NOT NULL AS migrated
\gset
\if :migrated
    -- Agents write nothing, but in the ways that are safe: they raise epochs, say what was lost with one, record policies,
    -- and keep how far they have come as named readers of changes. What is kept of a namespace's history they may declare
    -- where nothing is recorded of it; where operators alone shall decide, revoke declare_history() from them behind this.
    -- What a restore without its rights left to everybody is taken back first; what computes and reads nothing is everybody's.
    SELECT format('REVOKE ALL ON FUNCTION %s FROM PUBLIC, statecache_worker, statecache_agent, statecache_inspector', p.oid::regprocedure)
    FROM pg_proc p
    WHERE p.pronamespace = to_regnamespace(quote_ident(:'schema')) AND p.prokind = 'f' AND p.provolatile <> 'i'
          AND p.proname <> 'enforced_locks'
    \gexec
    GRANT EXECUTE ON FUNCTION :"schema".begin_epoch TO statecache_agent, statecache_worker;
    SELECT format('GRANT EXECUTE ON FUNCTION %s TO statecache_agent, statecache_worker', p.oid::regprocedure)
    FROM pg_proc p
    WHERE p.pronamespace = to_regnamespace(quote_ident(:'schema')) AND p.proname IN ('report_lost', 'set_locking', 'take_consumer', 'keep_consumer', 'declare_history', 'nearest_keys', 'vector_tables')
    UNION ALL
    SELECT format('GRANT EXECUTE ON FUNCTION %s TO statecache_worker', p.oid::regprocedure)
    FROM pg_proc p
    WHERE p.pronamespace = to_regnamespace(quote_ident(:'schema')) AND p.proname IN ('set_history', 'erase_history', 'detach_branch', 'index_vectors', 'nearest_keys', 'vector_tables')
    UNION ALL
    SELECT format('GRANT EXECUTE ON FUNCTION %s TO statecache_inspector', p.oid::regprocedure)
    FROM pg_proc p
    WHERE p.pronamespace = to_regnamespace(quote_ident(:'schema')) AND p.proname IN ('nearest_keys', 'vector_tables')
    UNION ALL
    SELECT format('GRANT INSERT ON %I.lost TO statecache_worker', :'schema')
    WHERE to_regclass(format('%I.lost', :'schema')) IS NOT NULL
    \gexec

    -- Workers add changes and move tips and the tokens of locks, add what is set aside, move watermarks and leases, and keep the list of
    -- themselves. Of what was kept they change nothing but how values of changes are kept, which a retention policy lets
    -- go, and what erase_history() blanks; and no epoch but through begin_epoch().
    GRANT INSERT ON :"schema".change, :"schema".conflict, :"schema".quarantine, :"schema".state TO statecache_worker;
    GRANT UPDATE (op, value, version, epoch, n, change_id, parent_change_id, encoding, schema, writer, updated_at)
        ON :"schema".state TO statecache_worker;
    GRANT UPDATE (flushed, entries, bytes, excepted, flushed_at, owner, lease_until)
        ON :"schema".shard TO statecache_worker;
    SELECT format('GRANT UPDATE (hashed, moved_keyframes) ON %I.shard TO statecache_worker', :'schema')
    WHERE EXISTS (SELECT FROM information_schema.columns
                  WHERE table_schema = :'schema' AND table_name = 'shard' AND column_name = 'hashed')
    UNION ALL
    SELECT format('GRANT UPDATE (value, packed, keyframe, size, digest, hash) ON %I.change TO statecache_worker', :'schema')
    WHERE EXISTS (SELECT FROM information_schema.columns
                  WHERE table_schema = :'schema' AND table_name = 'change' AND column_name = 'packed')
    UNION ALL
    SELECT format('GRANT INSERT, UPDATE ON %I.prune_pass TO statecache_worker', :'schema')
    WHERE to_regclass(format('%I.prune_pass', :'schema')) IS NOT NULL
    \gexec
    GRANT INSERT, UPDATE (beat_until), DELETE ON :"schema".worker TO statecache_worker;
    SELECT format('GRANT INSERT ON %I.branch TO statecache_worker', :'schema')
    WHERE to_regclass(format('%I.branch', :'schema')) IS NOT NULL
    UNION ALL
    SELECT format('GRANT INSERT, UPDATE (epoch, count) ON %I.lock_token TO statecache_worker', :'schema')
    WHERE to_regclass(format('%I.lock_token', :'schema')) IS NOT NULL
    UNION ALL
    SELECT format('GRANT UPDATE (avoids, trouble) ON %I.worker TO statecache_worker', :'schema')
    WHERE EXISTS (SELECT FROM information_schema.columns
                  WHERE table_schema = :'schema' AND table_name = 'worker' AND column_name = 'trouble')
    \gexec
\else
    \echo 'roles are there; the schema is empty: run this again after statecache migrate'
\endif
COMMIT;
