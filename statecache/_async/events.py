"""What the shards announce: one connection of a client listens to the channels of the shards that it cares for.

Events are sharded pub/sub: a shard's watermark moved (`<epoch> <flushed n> <excepted n>`), a waiter for a lock is
called (`lock <request> <ms> <key>`). Each hearer is told of every message and takes what it understands. An event may
be lost, with the connection or before it stood: who waits for one also looks for itself now and then, and hearers in
`broken` are told when the connection broke. Who has to be sure that it will hear what happens from now on waits until
the subscription is `confirmed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from statecache import _process
from statecache._bridge import AsyncBackground, AsyncSignal, AsyncSlots
from statecache.clock import monotonic
from statecache.errors import RedisUnavailable, UsageError

if TYPE_CHECKING:
    from statecache._async.connect import AsyncLink
    from statecache._async.redis import RedisTier
    from statecache.keys import KeySpace

_TURN_S = 1.0
"""How long the listener waits for a message before it looks whether the client was closed."""


class Events:
    """This listens to the shards' events for a whole client; nothing is connected before somebody wants to hear."""

    def __init__(self, keys: KeySpace, redis: RedisTier) -> None:
        self._keys = keys
        self._redis = redis
        self._closed = False
        self._inherited: list[object] = []
        self.hearers: list[Callable[[int, bytes], None]] = []
        self.broken: list[Callable[[], None]] = []
        self._reset()

    def _reset(self) -> None:
        self._turn = AsyncSlots(1)
        self._link: AsyncLink | None = None
        self._background: AsyncBackground | None = None
        self._wanted: dict[bytes, int] = {}
        self._confirmed: dict[int, AsyncSignal] = {}
        self._pid = _process.pid

    async def watch(self, shard: int, *, end: float) -> None:
        """This makes sure that the shard's events are listened to; where Redis is away, later calls try again."""
        if self._closed:
            raise UsageError("it is closed", hint="Make a new client.")
        if self._pid != _process.pid:
            if self._link is not None:
                self._link.abandon()
            self._inherited += (self._link, self._background)  # kept: even to collect them could harm the parent's
            self._reset()
        if self.listens(shard):
            return
        if not await self._turn.acquire(max(end - monotonic(), 0.001)):
            return
        try:
            with suppress(RedisUnavailable):
                await self._subscribe(shard, end)
        finally:
            self._turn.release()

    async def confirmed(self, shard: int, *, end: float) -> bool:
        """This does the same, and says whether every event from now on will be heard, unless the connection breaks."""
        await self.watch(shard, end=end)
        signal = self._confirmed.get(shard)
        return signal is not None and await signal.wait(end - monotonic()) and self.listens(shard)

    def listens(self, shard: int) -> bool:
        """This says whether the shard's events come in, as far as is known."""
        listens = self._background is not None and self._background.alive
        return listens and shard in self._confirmed and self._link is not None and self._link.alive

    async def _subscribe(self, shard: int, end: float) -> None:
        """This listens to one more shard; on a new connection to all that are wanted."""
        if self.listens(shard):
            return
        self._wanted[self._keys.events(shard).encode()] = shard
        new = [shard]
        if self._link is None or not self._link.alive:
            self._confirmed = {}
            new = sorted(self._wanted.values())
            self._link = await self._redis.link(max(end - monotonic(), 0.01))
        for wanted in new:
            self._confirmed[wanted] = AsyncSignal()
            await self._link.send(("SSUBSCRIBE", self._keys.events(wanted)), seconds=max(end - monotonic(), 0.01))
        if self._background is None or not self._background.alive:
            self._background = AsyncBackground(self._listen, name="statecache-events")

    async def _listen(self) -> None:
        """This takes events off the connection until it breaks or the client is closed."""
        while not self._closed and (link := self._link) is not None:
            try:
                messages = await link.receive(seconds=_TURN_S)
            except RedisUnavailable:
                last = self._link is link
                if last:  # whoever is told now must not take this for a listener
                    self._background = None
                for tell in self.broken:
                    tell()
                if last:
                    return
                continue
            for message in messages:
                if isinstance(message, list) and len(message) == 3:
                    self._heard(message)

    def _heard(self, message: Sequence[Any]) -> None:
        shard = self._wanted.get(message[1])
        if shard is None:
            return
        if message[0] == b"smessage":
            for tell in self.hearers:
                tell(shard, message[2])
        elif message[0] == b"ssubscribe" and shard in self._confirmed:
            self._confirmed[shard].set()

    async def close(self) -> None:
        """This stops listening."""
        self._closed = True
        if self._pid != _process.pid:
            return
        if self._link is not None:
            await self._link.hang_up()
        if self._background is not None:
            await self._background.stop()
        if self._link is not None:
            await self._link.close()
