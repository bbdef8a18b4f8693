# Generated from statecache/_async/epoch/__init__.py by tests/generators/unasync.py. Do not edit.

"""Epochs: opening a shard on the server that answers, comparing it with Postgres first."""
