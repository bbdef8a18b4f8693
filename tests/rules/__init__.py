"""The rules that the tree is held against, and the tests that hold it."""
