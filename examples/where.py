"""Where the examples find their servers: those of the STATECACHE_* settings, or throwaway ones of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from statecache.testing import servers


@contextmanager
def somewhere() -> Iterator[None]:
    """Have STATECACHE_REDIS_URL and STATECACHE_POSTGRES_URL name servers, for this process and those it starts."""
    if "STATECACHE_REDIS_URL" in os.environ:
        yield
        return
    with servers(workers=1) as started:
        os.environ["STATECACHE_REDIS_URL"] = started.redis_url
        os.environ["STATECACHE_POSTGRES_URL"] = started.postgres_url
        yield
