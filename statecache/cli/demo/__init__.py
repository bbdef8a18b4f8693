"""`statecache demo`."""
