# Generated from statecache/_async/__init__.py by tests/generators/unasync.py. Do not edit.

"""The clients and what they stand on, written by hand; `_sync` is generated from here."""
