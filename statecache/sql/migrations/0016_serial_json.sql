-- Before Postgres 18 a block that catches errors cannot run in a parallel plan, and one over many states was refused.
ALTER FUNCTION {schema}.json_or_null(bytea, text) PARALLEL UNSAFE;
