"""`statecache top`."""
