"""Programs that only a type checker reads: what a line comes to stands beside it; see tests/unit/test_types.py."""
