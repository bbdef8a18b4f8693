"""An opener's connections that tell of every exchange, before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from statecache.sql import statement

Tap = Callable[[str], None]


class TappedLink:
    """A link to Redis that reports every exchange, before and after it."""

    def __init__(self, link: Any, tap: Tap) -> None:
        self._link = link
        self.io = TappedIo(link.io, tap)
        self._tap = tap

    async def run(self, commands: Sequence[Any], *, seconds: float) -> Any:
        """Run commands as the link does."""
        return await self._told(str(commands[0][0]), lambda: self._link.run(commands, seconds=seconds))

    async def scripts(self, which: Any, calls: Sequence[Any], *, seconds: float) -> Any:
        """Run a script as the link does."""
        if not calls:
            return []
        reserves = which.name == "gate_look" and len(calls[0][1]) > 1
        name = "gate_reserve" if reserves else which.name
        return await self._told(name, lambda: self._link.scripts(which, calls, seconds=seconds))

    async def _told(self, name: str, work: Callable[[], Any]) -> Any:
        self._tap(f"before {name}")
        result = await work()
        self._tap(f"after {name}")
        return result


class TappedIo:
    """What an opener's exchanges go through, which reports those with Postgres, before and after each."""

    def __init__(self, io: Any, tap: Tap) -> None:
        self._io = io
        self._tap = tap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)

    async def rows(self, connection: Any, text: bytes, beside: Any) -> Any:
        """Run statements that are one message."""
        name = _named(text.decode())
        self._tap(f"before {name}")
        result = await self._io.rows(connection, text, beside)
        self._tap(f"after {name}")
        return result


def _named(text: str) -> str:
    names = ("begin_epoch", "shards", "later_starts", "keys_beyond", "rescue_branch", "quarantine_park")
    heads = {statement(name, "x").partition("\n")[0]: name for name in names}
    return next((name for head, name in heads.items() if head in text), "limits")


class TappedConnection:
    """A connection to Postgres that reports every statement, before and after it."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], tap: Tap) -> None:
        self._connection = connection
        self._tap = tap
        self.transaction = connection.transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, text: str, parameters: Any = None) -> Any:
        """Execute as the connection does."""
        name = _named(text)
        self._tap(f"before {name}")
        result = await self._connection.execute(text.encode(), parameters)
        self._tap(f"after {name}")
        return result
