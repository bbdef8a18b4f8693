"""Connections that lose a commit to order: the request before the server has it, or the reply after it was executed.

A `Wire` makes the connections of one client, the asynchronous one or the synchronous one. Nothing of the client is
replaced: it meets the fault where it would meet a broken network, and what was armed happens to the next commit only.
`then` runs at that moment, before the client notices: others can be quicker than its next attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import redis

from statecache import Settings
from statecache.concurrency import THREADS
from statecache.core.redis.connection import dialer
from statecache.lua import script

Lost = Literal["request", "reply"]
Then = Callable[[bool], Awaitable[None]]
"""What happens meanwhile; it is told whether the commit was applied, for a lost reply may also have been a refusal."""


class Wire:
    """A maker of connections, which lose one request or reply of the commit script when armed."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self._dial, self._dial_sync = dialer(settings), dialer(settings, io=THREADS)
        self._loop = loop
        self._marks = (script("commit").sha.encode(), script("commit").text.encode()[:200])
        self._armed: Lost | None = None
        self._then: Then | None = None

    def arm(self, lost: Lost, then: Then | None = None) -> None:
        """Let the next commit lose its request or its reply."""
        self._armed, self._then = lost, then

    @property
    def armed(self) -> bool:
        """Whether the fault is still to come."""
        return self._armed is not None

    def disarm(self) -> None:
        """Take back what was armed."""
        self._armed = None

    def dial(self) -> Any:
        """Make an asynchronous connection."""
        return _Connection(self._dial(), self)

    def dial_sync(self) -> Any:
        """Make a synchronous connection."""
        return _SyncConnection(self._dial_sync(), self)

    def meets(self, packed: Any) -> Lost | None:
        """Return the armed fault, and disarm, if these bytes carry the commit script."""
        data = packed if isinstance(packed, bytes) else b"".join(packed)
        if self._armed is None or not any(mark in data for mark in self._marks):
            return None
        lost, self._armed = self._armed, None
        return lost

    async def happen(self, reply: Any = None) -> None:
        """Run what was armed to happen at that moment."""
        if self._then is not None:
            answer = reply[0] if isinstance(reply, list) and reply else reply
            of_a_merge = isinstance(reply, list) and reply[1:2] == [b"OK"]
            await self._then(of_a_merge or (isinstance(answer, bytes) and b" OK " in answer))

    def happen_in_thread(self, reply: Any = None) -> None:
        """Do the same from the thread of a synchronous client."""
        asyncio.run_coroutine_threadsafe(self.happen(reply), self._loop).result()


class _Wired:
    """A connection of redis-py that loses what its wire says."""

    def __init__(self, connection: Any, wire: Wire) -> None:
        self.__dict__.update(connection=connection, wire=wire, replies_left=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["connection"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["connection"], name, value)

    def _noted(self, packed: Any) -> bool:
        """Note which reply is to be lost; return whether the request is lost."""
        lost = self.wire.meets(packed)
        data = packed if isinstance(packed, bytes) else b"".join(packed)
        if lost == "reply":
            self.__dict__["replies_left"] = 3 if b"MULTI" in data else 1
        return bool(lost == "request")

    def _last_reply(self) -> bool:
        """Count a reply; return whether it is the one behind which the connection ends."""
        left = self.__dict__["replies_left"]
        self.__dict__["replies_left"] = max(0, left - 1)
        return bool(left == 1)


class _Connection(_Wired):
    async def send_packed_command(self, packed: Any, *args: Any, **more: Any) -> None:
        if self._noted(packed):
            await self.wire.happen()
            raise redis.ConnectionError("the request was lost")
        await self.connection.send_packed_command(packed, *args, **more)

    async def read_response(self, *args: Any, **more: Any) -> Any:
        reply = await self.connection.read_response(*args, **more)
        if self._last_reply():
            await self.wire.happen(reply)
            raise redis.ConnectionError("the reply was lost")
        return reply


class _SyncConnection(_Wired):
    def send_packed_command(self, packed: Any, *args: Any, **more: Any) -> None:
        if self._noted(packed):
            self.wire.happen_in_thread()
            raise redis.ConnectionError("the request was lost")
        self.connection.send_packed_command(packed, *args, **more)

    def read_response(self, *args: Any, **more: Any) -> Any:
        reply = self.connection.read_response(*args, **more)
        if self._last_reply():
            self.wire.happen_in_thread(reply)
            raise redis.ConnectionError("the reply was lost")
        return reply
