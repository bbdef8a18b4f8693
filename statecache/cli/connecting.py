"""The client of a command by hand: how long it waits for servers that refuse connections, and what it says meanwhile.

Agents wait `timeout_s` for a server that restarts. A person who forgot to say which servers are meant should not: where
one of them refuses a connection at once, the command has two seconds for everything. That is decided before it begins,
so that no write is given up half-way. What the library has to say meanwhile stands on stderr, a line each.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from statecache.cli.screen import plain
from statecache.errors import StateCacheError, Unavailable
from statecache.keys import KeySpace

if TYPE_CHECKING:
    from statecache._async.client import AsyncStateCache
    from statecache.settings import Settings

REFUSED_S = 2.0
ASKING_S = 0.5
"""A server that has not answered by then does not refuse: it is given all the time that the settings say."""


@asynccontextmanager
async def client(settings: Settings, **more: Any) -> AsyncIterator[AsyncStateCache]:
    """Open a client for one command; `more` are settings that win over the others."""
    from statecache._async.client import AsyncStateCache  # most of what takes time to import

    with _warnings_told():
        async with AsyncStateCache(settings=(await patient(settings)).model_copy(update=more)) as cache:
            yield cache


@contextmanager
def _warnings_told() -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Line())
    logger = logging.getLogger("statecache")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Line(logging.Formatter):
    """A warning as errors look."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return f"statecache: {plain(record.getMessage())}"


async def patient(settings: Settings) -> Settings:
    """Return the settings, with at most two seconds for everything where a server refuses connections."""
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.connection import Link, dialer

    postgres = PostgresTier(settings, KeySpace(settings.prefix, settings.shards))
    refused = await asyncio.gather(
        _refuses(Link.open(dialer(settings), settings, ASKING_S)), _refuses(postgres.session(ASKING_S))
    )
    if not any(refused):
        return settings
    return settings.model_copy(update={"timeout_s": min(settings.timeout_s, REFUSED_S)})


async def _refuses(opening: Awaitable[Any]) -> bool:
    """Open a connection and return whether it was refused; whatever else goes wrong is for the command to say."""
    try:
        async with asyncio.timeout(ASKING_S):
            connection = await opening
    except Unavailable as error:
        return error.reason == "connect"
    except (StateCacheError, TimeoutError):
        return False
    await connection.close()
    return False
