"""What the shards announce: one connection of a client listens to the channels that it cares for.

Events are sharded pub/sub: a shard's watermark moved (`<epoch> <flushed n> <excepted n>`, on the shard's channel), a
waiter for a lock is called (`lock <request> <ms> <key>`, on a channel of the client's own). An event may be lost, with
the connection or before it stood: who waits for one also looks for itself now and then, and those in `broken` are told
when the connection broke. Who has to be sure that it will hear what happens from now on waits until the subscription is
`confirmed`.

Nobody depends on events, so callers spend little time on a connection that cannot be opened, as behind a proxy that
leaves new ones unanswered. It is opened in the background, for far servers take their time, and callers wait for that
no longer than they have, nor where it goes on for long. After an attempt that failed they do without for five times as
long as it took, or until the client has opened another connection to the server; ten seconds where it was refused.
Nothing is raised then: what else callers need of the server says by itself why they cannot have it.

A server that is silent is asked for a sign of life: the other end may be gone, and a proxy before it may keep the
connection. Where none comes, the connection is given up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.concurrency import NoThread
from statecache.core.redis.connection import let_go
from statecache.errors import RedisUnavailable, StateCacheError, Unavailable, UsageError

if TYPE_CHECKING:
    from statecache.concurrency import Background, Signal
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier

_logger = logging.getLogger("statecache")

_TURN_S = 1.0
"""How long the listener waits for a message before it checks whether the client was closed, in seconds."""
_PATIENCE_S = 2.0
"""For how long after its beginning callers wait for an attempt to connect, in seconds."""
_PAUSE = 5
"""For how many times as long as an attempt to connect took, and failed, no other one is made."""
_PAUSE_S_MAX = 10.0
_SILENT_S = 2.0
"""How long it waits for a sign of life that it has asked for, in seconds."""


class _Opening:
    """An attempt to connect: since when, and whether it is under way."""

    def __init__(self, ended: Signal) -> None:
        self.begun, self.ended, self.under_way = monotonic(), ended, True


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

    def begin_anew(self, _: AbstractContextManager[Any]) -> None:
        """Part with a parent's connection, and keep it: even to collect it could harm the parent."""
        if self._link is not None:
            self._link.abandon()
        self._inherited += (self._link, self._background)
        self._link = self._background = None
        self._opening: _Opening | None = None
        self._answered = False
        """Whether a subscription on this connection was confirmed."""
        self._turn = self._redis.io.slots(1)
        self._not_before = self._failed_at = 0.0
        self._asked: tuple[Link, float] | None = None
        """Which connection was asked for a sign of life that has not come, and when."""
        self._wanted: dict[str, Callable[[bytes], None]] = {}
        self._confirmed: dict[str, Signal] = {}

    async def watch(self, channel: str, hear: Callable[[bytes], None], *, end: float) -> None:
        """Have `hear` called with what arrives on a channel; where Redis is away, later calls try again."""
        if self._closed:
            raise UsageError("it is closed", hint="Make a new client.")
        self._redis.pool.check_place()
        self._wanted[channel] = hear
        if self._is_settled(channel):
            return
        turn = await self._turn.acquire(max(end - monotonic(), 0.001))
        if turn is None:
            return
        try:
            if not self._is_settled(channel):
                await self._subscribe(channel, end)
        finally:
            turn.release()

    async def confirmed(self, channel: str, hear: Callable[[bytes], None], *, end: float) -> bool:
        """Do as `watch`, and return whether every event from now on will be heard, unless the connection breaks."""
        await self.watch(channel, hear, end=end)
        signal = self._confirmed.get(channel)
        return signal is not None and await signal.wait(end - monotonic()) and self.listens(channel)

    def listens(self, channel: str) -> bool:
        """Return whether what arrives on the channel is heard, as far as is known."""
        return self._runs and channel in self._confirmed and self._link is not None and self._link.alive

    def _is_settled(self, channel: str) -> bool:
        """Return whether the channel is heard already, or whether an attempt to connect is not to be waited for."""
        if self.listens(channel):
            return True
        if (opening := self._under_way) is not None:
            return monotonic() - opening.begun >= _PATIENCE_S
        return monotonic() < self._not_before and self._redis.opened_at <= self._failed_at

    @property
    def _runs(self) -> bool:
        return self._background is not None and self._background.alive

    @property
    def _under_way(self) -> _Opening | None:
        """The attempt to connect that is under way, if one is."""
        return self._opening if self._runs and self._opening is not None and self._opening.under_way else None

    async def _subscribe(self, channel: str, end: float) -> None:
        """Subscribe to one more channel, once there is a connection."""
        if not self._runs or self._link is None or not self._link.alive:
            await self._connected(end)
        if channel not in self._confirmed and self._link is not None and self._link.alive:
            with suppress(RedisUnavailable):
                await self._ask_for(channel, self._link, end)

    async def _connected(self, end: float) -> None:
        """Wait for an attempt to connect, a new one where none is under way."""
        opening = self._under_way
        if opening is None:
            if self._link is not None:  # of whoever heard on it, the loop may have ended
                self._link.let_go()
                self._link = None
            opening = self._opening = _Opening(self._redis.io.signal())
            self._background = self._redis.io.background(partial(self._run, opening), name="statecache-events")
            try:
                self._background.start()
            except NoThread:
                self._pause(_PAUSE_S_MAX)
                return
        await opening.ended.wait(max(min(end, opening.begun + _PATIENCE_S) - monotonic(), 0.001))

    async def _ask_for(self, channel: str, link: Link, end: float) -> None:
        self._confirmed[channel] = self._redis.io.signal()
        await link.send(("SSUBSCRIBE", channel), seconds=max(end - monotonic(), 0.01))

    async def _run(self, opening: _Opening, background: Background) -> None:
        """Connect, and take what is announced off the connection until it breaks."""
        try:
            await self._open(background)
        except StateCacheError as error:
            refused = not isinstance(error, Unavailable) or error.reason == "authentication"
            if refused and self._goes_on(background):
                _logger.warning("events are not heard, and looked for instead: %s", error)
            self._pause(_PAUSE_S_MAX if refused else _PAUSE * (monotonic() - opening.begun), since=opening.begun)
            return
        finally:
            opening.under_way = False
            opening.ended.set()
        await self._listen(background)

    async def _open(self, background: Background) -> None:
        """Connect, and subscribe to all that is wanted."""
        link = await self._redis.link()
        if not self._goes_on(background):
            await link.close()
            return
        self._confirmed, self._answered = {}, False
        self._link = link
        for channel in [*self._wanted]:
            await self._ask_for(channel, link, monotonic() + _TURN_S)

    def _pause(self, seconds: float, *, since: float | None = None) -> None:
        """Take note that there is no connection, and that none is to be tried for so long, at most ten seconds.

        A connection that the client has opened `since` then, for something else, ends the pause: the server is there.
        """
        now = monotonic()
        self._failed_at = now if since is None else since
        self._not_before = max(self._not_before, now + min(seconds, _PAUSE_S_MAX))

    def _goes_on(self, background: Background) -> bool:
        """Return whether that task or thread is still the one, of a client that somebody has."""
        return not self._closed and self._background is background and self._owner() is not None

    async def _listen(self, background: Background) -> None:
        """Take events off the connection until it breaks or the client is closed."""
        while self._goes_on(background) and (link := self._link) is not None:
            try:
                messages = await link.receive(seconds=_TURN_S)
                if messages:
                    self._asked = None
                else:
                    await self._ask(link)
            except RedisUnavailable:
                last = self._link is link
                if last:  # whoever is told now must not take this for a listener
                    self._background = None
                    if not self._answered:  # it was closed over the first subscription, as where that is forbidden
                        self._pause(_PAUSE_S_MAX)
                for tell in self.broken:
                    tell()
                if last:
                    return
                continue
            for message in messages:
                if isinstance(message, list) and len(message) == 3:
                    self._heard(message)

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
            self._answered = True
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
        if self._background is not None:
            connects = self._under_way is not None  # a thread that does ends by itself, once that is over
            await self._background.stop(0.05 if connects else _TURN_S)
        if self._link is not None:
            await self._link.close()
