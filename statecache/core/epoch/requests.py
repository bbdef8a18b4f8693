"""What an opener asks of the two servers: scripts in rounds, statements in transactions of their own, within a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from statecache.core.postgres.transactions import asked
from statecache.lua import script

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link

_SCRIPTS_PER_ROUND = 256
_GRACE_S = 0.1
"""How much longer than Postgres' own timeout its answer is waited for, in seconds."""


class Calls:
    """Scripts and statements for an opener, each bounded to so many seconds."""

    def __init__(self, link: Link, connection: psycopg.AsyncConnection[Any], schema: str, *, seconds: float) -> None:
        self._link = link
        self._connection = connection
        self._schema = schema
        self._seconds = seconds

    async def scripts(self, name: str, calls: Sequence[tuple[list[str], list[Any]]]) -> list[Any]:
        """Run one script many times, and return the replies."""
        replies: list[Any] = []
        for start in range(0, len(calls), _SCRIPTS_PER_ROUND):
            some = calls[start : start + _SCRIPTS_PER_ROUND]
            replies += await self._link.scripts(script(name), some, seconds=self._seconds)
        return replies

    async def fetch(self, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run a named statement that is its own transaction: whoever is stopped here holds no lock."""
        io = self._link.io
        async with io.timeout(self._seconds + _GRACE_S, self._connection):
            return await asked(self._connection, self._schema, name, parameters, seconds=self._seconds, io=io)
