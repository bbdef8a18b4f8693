"""Connections to Redis: plain, pooled, tracked, and subscribed."""
