# Generated from statecache/_async/api/__init__.py by tests/generators/unasync.py. Do not edit.

"""What a user calls: the client, its views, transactions, leases, and how it goes down."""
