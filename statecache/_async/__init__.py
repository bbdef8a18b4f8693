"""The clients and what they stand on, written by hand; `_sync` is generated from here."""
