"""`statecache replay`."""
