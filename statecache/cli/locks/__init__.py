"""`statecache locks`."""
