"""The tracked connection: local misses are read on it, heartbeats answered, and the server's pushes arrive.

Every client has one, opened when something is first read locally, in RESP3, with tracking by opting in: what is read
behind CLIENT CACHING YES is tracked, nothing else is, so a commit costs the same however many clients never read its
key. Nothing is written on it but that a state is absent. Replies and pushes come in one order, the server's, and one
task takes them off; in the synchronous client that is a thread, or whoever waits for an answer just then.

    connect       everything known is dropped; then the connection is opened, with its handshake, tracked, and heard
    heartbeat     every quarter of the trust window: role, replication id and replicas of the server, which epoch its
                  data set is in, and what time it is there. Any other server or epoch than before, and everything known
                  is dropped; a server that is no primary is left, by the other connections too
    later epoch   a shard that was open here in an earlier one is met elsewhere: everything known is dropped
    closed gate   before a shard is first read on it, the server is asked, ahead of the read in the same exchange,
                  whether the shard is open; where it is not, the read is made on the primary
    unanswered    a heartbeat of a whole window ago, and nothing came for as long: the connection is given up. Bytes
                  that arrive are a sign of life, though no reason to trust: the answer may wait behind them
    gone          every read under way on it fails, and is made on the primary; it is opened again, ever more patiently
    no tracking   said once, loudly, and looked at again after a minute: every read is made on the primary meanwhile
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hiredis import PushNotification
from redis.exceptions import NoScriptError

from statecache._process import begins_anew_after_fork, mutex
from statecache.backoff import Backoff
from statecache.clock import boottime, monotonic
from statecache.core.redis.connection import let_go
from statecache.core.redis.tracked_call import Call
from statecache.errors import ConfigurationError, ForeignData, RedisUnavailable, StateCacheError
from statecache.lua import script
from statecache.near import Reading
from statecache.records import FIELDS, record_of
from statecache.redis_errors import DEMOTED, code_of, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from statecache.commit_protocol.answers import Committed
    from statecache.commit_protocol.commit import Commit
    from statecache.concurrency import Background
    from statecache.core.epoch.newest_epochs import NewestEpochs
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.near import Near
    from statecache.settings import Settings

_BEATS_PER_WINDOW = 4
_PAUSE_S = 0.05
_PAUSE_S_MAX = 2.0
_UNTRACKED_S = 60.0
_END_S = 0.02
_AWAKE_S = 0.5
"""How long closing waits for the listener's end, in seconds: it ends by itself while connecting, and soon if woken."""
_LOST = RedisUnavailable("connection", detail="the tracked connection was lost")
_CLOSED = RedisUnavailable("epoch", detail="the gate is closed")
_logger = logging.getLogger("statecache")


class TrackedConnection:
    """One client's tracked connection, and with it the trust in what its near cache holds."""

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, near: Near, epochs: NewestEpochs, *,
        owner: Callable[[], object],
    ) -> None:  # fmt: skip
        self._settings, self._keys, self._redis, self._near = settings, keys, redis, near
        self._epochs, self._owner = epochs, owner
        self._beat_s = settings.near_window_s / _BEATS_PER_WINDOW
        self._closed = False
        self._inherited: tuple[object, ...] = ()
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
        self._starting = mutex
        self._turn, self._ear = self._redis.io.slots(1), self._redis.io.slots(1)
        self._heartbeat_call: float | None = None  # when the heartbeat under way was sent
        self._came, self._unread = 0.0, 0  # when bytes came last, and how many of them are no whole message yet
        self._stopped, self._up = self._redis.io.signal(), self._redis.io.signal()
        self._server, self._is_behind = b"", False
        self._open: dict[int, int] = {}  # shards whose gate is known to be open on that server, with the epoch
        self._not_before, self.untrusted_reason, self.wanted = 0.0, "", False  # wanted: reads have asked for it

    @property
    def reading(self) -> bool:
        """Whether a read is under way."""
        return (link := self._link) is not None and any(isinstance(one, Reading) for one in [*link.expected])

    def is_up(self) -> bool:
        """Return whether reads can be made here; where not, begin to connect without waiting."""
        if self._link is not None:
            return self._near.trusted(boottime())
        self._start()
        return False

    async def comes_up(self, seconds: float) -> bool:
        """Wait until reads can be made here, if that is to be expected, and return whether they can."""
        end = monotonic() + seconds
        while not self.is_up():
            background = self._background
            if background is None or not background.alive or not await self._up.wait(max(end - monotonic(), 0.0)):
                return False
        return True

    def _start(self) -> None:
        """Begin to connect; of several threads that come at once, one does."""
        with self._starting:
            running = self._background is not None and self._background.alive
            if not (running or self._closed) and self._redis.tracks and monotonic() >= self._not_before:
                self._background, self.wanted = self._redis.io.background(self._live, name="statecache-near"), True
                self._background.start()

    def _goes_on(self, background: Background) -> bool:
        """Return whether that task or thread is still the one, of a client that somebody has."""
        return not self._closed and self._background is background and self._owner() is not None

    async def ask(self, *readings: Reading, seconds: float) -> None:
        """Send reads, whose signals are set when they are answered; raise RedisUnavailable where that fails."""
        if not readings:
            return
        sent = False
        try:
            await self._send(lambda link: self._reads(link, readings), seconds)
            sent = True
        finally:
            if not sent:
                for reading in readings:
                    self._near.settle(reading, None, _LOST)

    async def start(self, call: Call, *, seconds: float) -> None:
        """Send a call, whose answer may be waited for; it is lost at once where the connection is."""
        sent = False
        try:
            with suppress(RedisUnavailable):
                await self._send(lambda link: ([call.command(link)], [call]), seconds)
                sent = True
        finally:
            if not sent:
                call.lost()

    async def wrote(self, commit: Commit, committed: Committed) -> None:
        """Note what was written here: nothing older is seen from now on, and what is in use is read again."""
        epoch, versions = committed.position.epoch, iter(committed.versions)
        self.met(commit.shard, epoch)
        for write in commit.writes:
            if write.op != "check" and self._near.wrote(write.key, (epoch, next(versions))):
                await self._refresh(write.key)

    def met(self, shard: int, epoch: int) -> None:
        """Give the connection up where the shard is in a later epoch than on its server: that is an old primary."""
        if self._open.get(shard, epoch) < epoch:
            self._open.pop(shard, None)  # another thread may have met it too
            self._is_behind = True
            self._near.drop()

    async def _refresh(self, key: str) -> None:
        """Have a state read, without waiting for it."""
        if self.is_up():
            reading, mine = self._near.reserve(key, self._redis.io.signal(), boottime())
            if mine:
                with suppress(RedisUnavailable):
                    await self.ask(reading, seconds=self._settings.near_window_s)

    async def _send(self, spell: Callable[[Link], tuple[list[Any], list[Any]]], seconds: float) -> None:
        """Send commands, with what is expected for each, as they are spelled for the connection that there is."""
        turn = await self._turn.acquire(seconds)
        if turn is None:
            raise RedisUnavailable("pool", detail="the tracked connection was busy")
        try:
            link = self._link
            if link is None:
                raise RedisUnavailable("connection", detail="the tracked connection is closed")
            commands, expected = spell(link)
            await link.send(*commands, seconds=seconds, expected=expected)
        finally:
            turn.release()

    def _reads(self, link: Link, readings: Sequence[Reading]) -> tuple[list[Any], list[Any]]:
        """Return the commands of reads, ahead of them whether their shards are open, and what is expected for each."""
        proof = script("fenced_read")
        unproven = sorted({self._keys.shard(one.key) for one in readings} - self._open.keys())
        commands: list[Any] = [link.call(proof, [self._keys.meta(shard)], [self._settings.fence]) for shard in unproven]
        for reading in readings:
            commands += (("CLIENT", "CACHING", "YES"), ("HMGET", self._keys.state(reading.key), *FIELDS))
        return commands, [*unproven, *(one for reading in readings for one in (None, reading))]

    async def _live(self, background: Background) -> None:
        """Connect and serve, until the client is closed."""
        backoff = Backoff(_PAUSE_S, _PAUSE_S_MAX)
        while self._goes_on(background):
            try:
                link = await self._redis.tracked_link()
            except ConfigurationError as error:
                self._untracked(error)
                return
            except StateCacheError as error:
                self.untrusted_reason = str(error)
            else:
                backoff, self.untrusted_reason = Backoff(_PAUSE_S, _PAUSE_S_MAX), ""
                try:
                    await self._serve(link, background)
                except (RedisUnavailable, ForeignData) as error:
                    self.untrusted_reason = str(error)
                    if isinstance(error, RedisUnavailable) and error.reason == "role":
                        await self._redis.pool.drop_idle(all_of_them=True)
                finally:
                    if not isinstance(sys.exception(), GeneratorExit):  # who is thrown away cannot wait for an answer
                        await self._part(link)
            if await self._stopped.wait(backoff.take()):
                return

    def _untracked(self, error: StateCacheError) -> None:
        self._not_before = monotonic() + _UNTRACKED_S
        if self.untrusted_reason != str(error):
            self.untrusted_reason = str(error)
            _logger.warning("every read goes to the primary, nothing is read locally: %s", error)

    async def _serve(self, link: Link, background: Background) -> None:
        """Take replies and pushes off the connection until it breaks."""
        self._near.drop()
        self._server, self._is_behind, self._open, self._heartbeat_call, self._link = b"", False, {}, None, link
        self._came, self._unread, due = boottime(), 0, monotonic()
        while self._goes_on(background):
            if self._is_behind:
                raise RedisUnavailable("epoch", detail="the tracked connection leads to an old primary")
            if monotonic() >= due:
                await self._beat()
                due = monotonic() + self._beat_s
            if await link.has_news(self._beat_s) and (reads := await self._ear.acquire(self._beat_s)) is not None:
                try:
                    if await link.has_news(0):  # unless somebody else has taken it meanwhile
                        await self._take(link, self._beat_s)
                finally:
                    reads.release()

    async def _take(self, link: Link, seconds: float) -> bool:
        """Take one reply or push off the connection; return whether one came, and more of another is there already.

        Nothing more is taken off a connection whose last reader was interrupted (by a signal handler that raised): what
        it had read in part may have been a push.
        """
        if link.in_message or link is not self._link:
            detail = "whoever read the tracked connection was interrupted, or there is another one"
            raise RedisUnavailable("connection", detail=detail)
        link.in_message = True
        message = await link.heard(seconds=min(seconds, self._beat_s))
        if message is not None or link.unread_bytes != self._unread:
            self._came, self._unread = boottime(), link.unread_bytes
        if isinstance(message, PushNotification):
            self._pushed(message)
        elif message is not None:
            self._answered(link, message)
        link.in_message = False
        return message is not None and link.buffered

    async def answered(self, asked: Reading | Call, seconds: float) -> bool:
        """Wait until it is answered or lost, and return whether it is; a thread reads for itself, if nobody else does.

        A read that is not answered for half a window is given up for all who share it: its sender may have been
        interrupted.
        """
        link, answered = self._link, False
        if link is None:
            return bool(await asked.signal.wait(0))
        try:
            answered = await self._redis.io.lead(
                self._ear, lambda left: self._take(link, left), asked.signal, seconds, link.arrivals
            )
        except (RedisUnavailable, ForeignData):
            await link.close()  # whoever listens finds it so
        if isinstance(asked, Reading) and not answered and seconds >= self._settings.near_window_s / 2:
            self._near.settle(asked, None, _LOST)
        return answered

    async def _beat(self) -> None:
        """Send a heartbeat unless one is under way; one that is overdue means that the connection is dead."""
        now = boottime()
        if self._heartbeat_call is not None:
            if now - max(self._heartbeat_call, self._came) > self._settings.near_window_s:
                raise RedisUnavailable("timeout", detail="the tracked connection has gone silent")
            return
        self._heartbeat_call = now
        call = script("heartbeat"), [self._keys.meta(0)], [self._settings.fence]
        await self._send(lambda link: ([link.call(*call)], [now]), self._settings.near_window_s)

    def _pushed(self, message: Sequence[Any]) -> None:
        if message[0] == b"invalidate" and message[1] is None:
            self._near.drop()
        elif message[0] == b"invalidate":
            self._near.invalidate(self._keys.key_of(name) for name in message[1])

    def _answered(self, link: Link, reply: Any) -> None:
        """Hand a reply to whoever expects it: replies come in the order of the questions."""
        if not link.expected:
            raise RedisUnavailable("connection", detail="a reply belongs to no request")
        expected = link.expected.popleft()
        if expected is None:
            if reply != b"OK":
                raise RedisUnavailable("refused", detail=f"CLIENT CACHING: {reply}")
        elif isinstance(expected, float):
            self._heartbeat(link, expected, reply)
        elif isinstance(expected, Call):
            expected.answered(link, reply)
        elif isinstance(expected, int):
            self._told_of_gate(link, expected, reply)
        else:
            self._brought(expected, reply)

    def _told_of_gate(self, link: Link, shard: int, reply: Any) -> None:
        link.knows(script("fenced_read"), not isinstance(reply, NoScriptError))
        if isinstance(reply, Exception) and code_of(reply) in DEMOTED:
            raise RedisUnavailable("role", detail=f"the server is no primary: {reply}")
        self._open.pop(shard, None)
        if isinstance(reply, list) and reply[0] == b"OK":
            self._open[shard] = int(reply[1])
            self.met(shard, self._epochs.of(shard))

    def _heartbeat(self, link: Link, sent: float, reply: Any) -> None:
        self._heartbeat_call = None
        link.knows(script("heartbeat"), not isinstance(reply, Exception))
        if isinstance(reply, NoScriptError):
            return
        if isinstance(reply, Exception) or (self._settings.fence == "on" and not reply.startswith(b"master ")):
            raise RedisUnavailable("role", detail=f"the server is no primary: {reply!r}")
        server, _, now_ms = reply.rpartition(b" ")
        self._redis.clock.heard(now_ms, sent)
        if server != self._server:
            if self._server:
                self._near.drop()
                self._open = {}
            self._server = server
        if not self._is_behind:
            self._near.answered(sent)
        self._up.set()

    def _brought(self, reading: Reading, reply: Any) -> None:
        redis_key = self._keys.state(reading.key)
        if not isinstance(reply, (list, Exception)):
            raise RedisUnavailable("connection", detail="a reply belongs to another request")
        if self._keys.shard(reading.key) not in self._open:
            self._near.settle(reading, None, _CLOSED)
            return
        if isinstance(reply, Exception):
            self._near.settle(reading, None, refusal(reply, redis_key))
            return
        try:
            self._near.settle(reading, record_of(redis_key, reading.key, reply))
        except ForeignData as error:
            self._near.settle(reading, None, error)

    async def _part(self, link: Link) -> None:
        """Drop everything known with the connection, and fail what was under way on it."""
        if self._link is not link:  # another one has taken its place
            await link.close()
            return
        self._link, self._up = None, self._redis.io.signal()
        try:
            self._near.drop()
        finally:
            await link.close()  # whoever is sending on it is rid of it
        if (turn := await self._turn.acquire(self._settings.near_window_s)) is not None:
            turn.release()
        self._turn, self._ear = self._redis.io.slots(1), self._redis.io.slots(1)  # who was interrupted gives none back
        for expected in link.expected:
            if isinstance(expected, Reading):
                self._near.settle(expected, None, _LOST)
            elif isinstance(expected, Call):
                expected.lost()

    def let_go(self) -> None:
        """End the background task or thread; it takes no lock, for a finalizer calls it."""
        self._closed, self.wanted = True, False
        let_go(self._background, self._link)
        self._stopped.set()

    async def close(self) -> None:
        """End the connection, and the trust in what is known."""
        self._closed, self.wanted = True, False
        self._near.drop()
        self._stopped.set()
        if self._link is not None:
            self._link.hang_up()
        if self._background is not None:
            await self._background.stop(_END_S if self._link is None else _AWAKE_S)
