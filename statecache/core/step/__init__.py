"""Steps: who runs one, its record, and what a key has of them."""
