# Generated from statecache/_async/lock/__init__.py by tests/generators/unasync.py. Do not edit.

"""Leases of locks, and which namespaces enforce them."""
