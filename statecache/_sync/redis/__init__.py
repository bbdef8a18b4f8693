# Generated from statecache/_async/redis/__init__.py by tests/generators/unasync.py. Do not edit.

"""Connections to Redis: plain, pooled, tracked, and subscribed."""
