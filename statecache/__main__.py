"""`python -m statecache` is the command `statecache`."""

from __future__ import annotations

from statecache.cli import main

if __name__ == "__main__":
    main()
