"""`get`, `set`, `rm`, `ls` and `where`."""
