"""Commits, as far as nothing is waited for: what one is, what comes next for it, and what a client remembers."""
