"""How long a command by hand waits for servers that refuse connections.

Agents wait `timeout_s` for a server that restarts. A person who forgot to say which servers are meant should not: where
one of them refuses a connection at once, the command has two seconds for everything. That is decided before it begins,
so that no write is given up half-way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.connection import Link, dialer
from statecache.errors import StateCacheError, Unavailable
from statecache.keys import KeySpace

if TYPE_CHECKING:
    from statecache.settings import Settings

REFUSED_S = 2.0
ASKING_S = 0.5
"""A server that has not answered by then does not refuse: it is given all the time that the settings say."""


async def patient(settings: Settings) -> Settings:
    """Return the settings, with at most two seconds for everything where a server refuses connections."""
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
