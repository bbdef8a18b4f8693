"""Reads: from Redis, from Postgres into Redis, of many keys, and lists."""
