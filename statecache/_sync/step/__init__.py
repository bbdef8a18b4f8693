# Generated from statecache/_async/step/__init__.py by tests/generators/unasync.py. Do not edit.

"""Steps: who runs one, its record, and what a key has of them."""
