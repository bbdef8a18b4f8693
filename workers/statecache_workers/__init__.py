"""This package holds the worker process."""
