"""What is generated from the source: the synchronous mirror, and parts of the pages; `make sync` writes all of it."""
