"""`log`, `show`, `diff` and `blame`."""
