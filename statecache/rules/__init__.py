"""What is decided from values alone: epochs, leases, steps, chains, fates, merges. Nothing is connected or timed."""
