"""The connections of redis-py and psycopg that block, with methods that are coroutines and never suspend."""

from __future__ import annotations

from typing import Any

import psycopg
from redis.exceptions import RedisError

from statecache.concurrency.bounding import BoundConnection


class BlockingRedis:
    """A synchronous connection of redis-py."""

    __slots__ = ("connection",)

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def connect(self) -> None:
        """Connect."""
        self.connection.connect()

    async def send_packed_command(self, command: Any) -> None:
        """Send what was packed."""
        self.connection.send_packed_command(command)

    async def read_response(self, **options: Any) -> Any:
        """Read one reply."""
        return self.connection.read_response(**options)

    async def disconnect(self, nowait: bool = False) -> None:  # noqa: ARG002
        """Close the connection, which takes no time."""
        self.connection.disconnect()


def refused(**_: object) -> None:
    """Raise RedisError, in place of connecting again."""
    raise RedisError("the connection is closed")


def passed_on(message: Any) -> Any:
    """Return a message as it is."""
    return message


class BlockingPostgres:
    """A synchronous connection of psycopg."""

    __slots__ = ("__weakref__", "plain")

    def __init__(self, connection: BoundConnection) -> None:
        self.plain = connection

    @property
    def bound(self) -> Any:
        """What bounds the waiting of who uses the connection at the moment."""
        return self.plain.bound

    @bound.setter
    def bound(self, bound: Any) -> None:
        self.plain.bound = bound

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    async def execute(self, query: Any, parameters: Any = None) -> BlockingCursor:
        """Run one statement."""
        return BlockingCursor(self.plain.execute(query, parameters))

    def transaction(self) -> BlockingTransaction:
        """Return a block that is one transaction."""
        return BlockingTransaction(self.plain)

    async def close(self) -> None:
        """Close the connection."""
        self.plain.close()


class BlockingCursor:
    """A synchronous cursor of psycopg."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    async def execute(self, query: Any, parameters: Any = None) -> None:
        """Run statements."""
        self._cursor.execute(query, parameters)

    async def fetchone(self) -> Any:
        """Return the next row, or None."""
        return self._cursor.fetchone()

    async def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return self._cursor.fetchall()


class BlockingTransaction:
    """A synchronous transaction of psycopg."""

    __slots__ = ("_block",)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._block = connection.transaction()

    async def __aenter__(self) -> Any:
        return self._block.__enter__()

    async def __aexit__(self, *exc_info: Any) -> Any:
        return self._block.__exit__(*exc_info)
