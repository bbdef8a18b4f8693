"""Commits: attempts, batches, repeats, durability, and outcomes that are unknown."""
