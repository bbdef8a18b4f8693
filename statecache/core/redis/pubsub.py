"""What the shards announce: one connection of a client listens to the channels that it cares for.

Events are sharded pub/sub: a shard's watermark moved (`<epoch> <flushed n> <excepted n>`, on the shard's channel), a
waiter for a lock is called (`lock <request> <ms> <key>`, on a channel of the client's own). An event may be lost, with
the connection or before it stood: who waits for one also looks for itself now and then, and those in `broken` are told
when the connection broke. Who has to be sure that it will hear what happens from now on waits until the subscription is
`confirmed`.

Nobody depends on events, so nobody waits long for the connection: a task or thread of its own opens it. Who comes first
waits for that a moment; where it takes longer, as with a proxy that leaves new connections unanswered, callers go on
without events until it stands.

A server that is silent is asked for a sign of life: the other end may be gone, and a proxy before it may keep the
connection. Where none comes, the connection is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from math import inf
from typing import TYPE_CHECKING, Any

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.core.redis.connection import let_go
from statecache.errors import RedisUnavailable, StateCacheError, UsageError

if TYPE_CHECKING:
    from statecache.concurrency import Background, Signal
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier

_TURN_S = 1.0
"""How long the listener waits for a message before it checks whether the client was closed, in seconds."""
_OPENING_S = 1.0
"""How long callers wait for the connection, all together for one attempt to open it, in seconds."""
_AGAIN_S = 1.0
"""How long after an attempt that took longer, and failed, the next one is made, in seconds."""
_END_S = 0.02
"""How long a closing client waits for a thread that opens the connection, in seconds."""
_AWAKE_S = 5.0
"""How long it waits for one that listens, which was woken, in seconds."""
_SILENT_S = 2.0
"""How long it waits for a sign of life that it has asked for, in seconds."""


class _Opening:
    """An attempt to open the connection: when it has ended, until when it is waited for, and what refused it."""

    def __init__(self, ended: Signal, waited_until: float) -> None:
        self.ended, self.waited_until = ended, waited_until
        self.refused: StateCacheError | None = None


class Subscriptions:
    """A client's subscriptions to events; nothing is connected before somebody wants to hear."""

    def __init__(self, redis: RedisTier, *, owner: Callable[[], object]) -> None:
        self._redis = redis
        self._owner = owner
        self._closed = False
        self._inherited: list[object] = []
        self.broken: list[Callable[[], None]] = []
        self._link: Link | None = None
        self._background: Background | None = None
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Part with a parent's connection, and keep it: even to collect it could harm the parent."""
        if self._link is not None:
            self._link.abandon()
        self._inherited += (self._link, self._background)
        self._link = self._background = None
        self._mutex = mutex
        self._opening = _Opening(self._redis.io.signal(), -inf)
        self._is_slow = False
        """Whether the last attempt to open the connection failed after longer than anybody waits."""
        self._not_before = -inf
        self._turn = self._redis.io.slots(1)
        self._asked: tuple[Link, float] | None = None
        """Which connection was asked for a sign of life that has not come, and when."""
        self._wanted: dict[str, Callable[[bytes], None]] = {}
        self._confirmed: dict[str, Signal] = {}

    async def watch(self, channel: str, hear: Callable[[bytes], None], *, end: float) -> None:
        """Have `hear` called with what arrives on a channel; where that is not so by the end, later calls see to it."""
        if self._closed:
            raise UsageError("it is closed", hint="Make a new client.")
        self._redis.pool.check_place()
        if self.listens(channel):
            return
        self._wanted[channel] = hear
        await self._until_connected(end)
        if self._link is None:
            return
        turn = await self._turn.acquire(max(end - monotonic(), 0.001))
        if turn is None:
            return
        try:
            with suppress(RedisUnavailable):
                if not self.listens(channel) and self._background is not None and self._link is not None:
                    await self._subscribe(self._link, channel, max(end - monotonic(), 0.01))
        finally:
            turn.release()

    async def confirmed(self, channel: str, hear: Callable[[bytes], None], *, end: float) -> bool:
        """Do as `watch`, and return whether every event from now on will be heard, unless the connection breaks."""
        await self.watch(channel, hear, end=end)
        signal = self._confirmed.get(channel)
        return signal is not None and await signal.wait(end - monotonic()) and self.listens(channel)

    def listens(self, channel: str) -> bool:
        """Return whether what arrives on the channel is heard, as far as is known."""
        listens = self._background is not None and self._background.alive
        return listens and channel in self._confirmed and self._link is not None and self._link.alive

    async def _until_connected(self, end: float) -> None:
        """Have a connection opened where there is none, and wait for it unless that has been found to take long.

        Raises what refuses it for good, as another deployment's server is.
        """
        with self._mutex:
            begun = self._background is not None and self._background.alive
            if begun and (self._link is None or self._link.alive):
                opening = self._opening
            elif monotonic() < self._not_before:
                return
            else:
                opening = self._opening = _Opening(self._redis.io.signal(), monotonic() + _OPENING_S)
                self._link, self._background = None, self._redis.io.background(self._live, name="statecache-events")
                self._background.start()
        left = min(end, opening.waited_until) - monotonic()
        if left > 0 and not self._is_slow:
            await opening.ended.wait(left)
        if opening.refused is not None:
            raise opening.refused

    async def _subscribe(self, link: Link, channel: str, seconds: float) -> None:
        self._confirmed[channel] = self._redis.io.signal()
        await link.send(("SSUBSCRIBE", channel), seconds=seconds)

    async def _live(self, background: Background) -> None:
        """Open the connection, subscribe to all that is wanted, and listen."""
        opening, link = self._opening, None
        try:
            link = await self._redis.link()
            await self._take_up(link, background)
            self._is_slow = False
        except StateCacheError as error:
            if not isinstance(error, RedisUnavailable):
                opening.refused = error
            self._is_slow = monotonic() >= opening.waited_until
            if self._is_slow:
                self._not_before = monotonic() + _AGAIN_S
            if self._background is background:  # the next call is to find that there is none
                self._background = None
            return
        finally:
            opening.ended.set()
        await self._listen(link, background)

    async def _take_up(self, link: Link, background: Background) -> None:
        """Subscribe on a new connection, which is closed where nobody wants it any more."""
        turn = await self._turn.acquire(_OPENING_S)
        try:
            if turn is None or not self._goes_on(background):
                raise RedisUnavailable("connection", detail="the connection for events came too late")
            self._confirmed, self._link = {}, link
            for channel in list(self._wanted):
                await self._subscribe(link, channel, _OPENING_S)
        except BaseException:  # whatever hindered it, nobody will listen
            await link.close()
            raise
        finally:
            if turn is not None:
                turn.release()

    def _goes_on(self, background: Background) -> bool:
        """Return whether that task or thread is still the one, of a client that somebody has."""
        return not self._closed and self._background is background and self._owner() is not None

    async def _listen(self, link: Link, background: Background) -> None:
        """Take events off the connection until it breaks or the client is closed."""
        while self._goes_on(background):
            try:
                messages = await link.receive(seconds=_TURN_S)
                if messages:
                    self._asked = None
                else:
                    await self._ask(link)
            except RedisUnavailable:
                break
            for message in messages:
                if isinstance(message, list) and len(message) == 3:
                    self._heard(message)
        if not self._closed:
            if self._background is background:  # whoever is told now must not take this for a listener
                self._background = None
            for tell in self.broken:
                tell()

    async def _ask(self, link: Link) -> None:
        """Ask for a sign of life, once; raise RedisUnavailable where the one that was asked for has not come."""
        now = monotonic()
        if self._asked is None or self._asked[0] is not link:
            self._asked = link, now
            await link.send(("PING",), seconds=_TURN_S)
        elif now - self._asked[1] > _SILENT_S:
            await link.close()
            raise RedisUnavailable("timeout", detail="the connection on which events are heard has gone silent")

    def _heard(self, message: Sequence[Any]) -> None:
        channel = message[1].decode()
        if message[0] == b"smessage" and channel in self._wanted:
            self._wanted[channel](message[2])
        elif message[0] == b"ssubscribe" and channel in self._confirmed:
            self._confirmed[channel].set()

    def let_go(self) -> None:
        """Stop listening, without waiting; it takes no lock, for a finalizer calls it."""
        self._closed = True
        let_go(self._background, self._link)

    async def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._link is not None:
            self._link.hang_up()
        if (background := self._background) is not None:
            await background.stop(_END_S if self._link is None else _AWAKE_S)
        if self._link is not None:
            await self._link.close()
