"""All that asks Redis and Postgres, written once, as coroutines that wait by `statecache.concurrency` only."""
