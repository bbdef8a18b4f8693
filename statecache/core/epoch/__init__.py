"""Epochs: opening a shard on the server that answers, comparing it with Postgres first."""
