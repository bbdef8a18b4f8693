# Generated from statecache/_async/commit/__init__.py by tests/generators/unasync.py. Do not edit.

"""Commits: attempts, batches, repeats, durability, and outcomes that are unknown."""
