# Generated from statecache/_async/postgres/__init__.py by tests/generators/unasync.py. Do not edit.

"""Connections to Postgres, and its schema."""
