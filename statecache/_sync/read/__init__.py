# Generated from statecache/_async/read/__init__.py by tests/generators/unasync.py. Do not edit.

"""Reads: from Redis, from Postgres into Redis, of many keys, and lists."""
