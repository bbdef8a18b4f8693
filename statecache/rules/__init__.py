"""What is decided from values alone: epochs, leases, steps, chains, fates. Nothing is connected, no clock is read."""
