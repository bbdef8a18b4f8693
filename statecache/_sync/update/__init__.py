# Generated from statecache/_async/update/__init__.py by tests/generators/unasync.py. Do not edit.

"""Updates of one state by many: in turn within a process and between processes."""
