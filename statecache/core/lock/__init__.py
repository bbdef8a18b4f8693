"""Leases of locks, and which namespaces enforce them."""
