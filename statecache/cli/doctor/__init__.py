"""`statecache doctor`."""
