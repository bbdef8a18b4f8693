"""The Redis tier: a pool of links whose handshake succeeded, and exchanges on them.

A handshake comes before anyone uses a new connection: the server must be a primary, the pin (shards, hash, prefix,
schema, cluster) must be ours, and the user must be allowed every command of the scripts, for a script that is refused
in its middle would leave half a commit. A server that turns out to be a primary no more is left, on all idle
connections: the next ones may find its successor. What may be repeated after a fault is the caller's to know; `read`
is for what may.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import NoScriptError, ResponseError
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from statecache.backoff import LATE_S
from statecache.clock import boottime, monotonic
from statecache.concurrency import TASKS, Concurrency
from statecache.core.pool import Pool
from statecache.core.redis.connection import Dial, Link, dialer
from statecache.core.redis.not_opened import hung_up, is_refused, not_opened
from statecache.core.redis.rights import CLIENT, FENCED, Rights, commands, first_and_last, rights, shards_to_ask
from statecache.core.redis.server_clock import ServerClock
from statecache.errors import ConfigurationError, RedisUnavailable, StateCacheError
from statecache.keys import HASH
from statecache.lua import Script, script
from statecache.redis_errors import (
    AGAIN,
    CLUSTER,
    DEMOTED,
    FINAL,
    GRANT,
    SERVERS,
    answer_of,
    code_of,
    is_sentinel,
    no_primary,
    of_cluster,
    of_sentinel,
    refusal,
)
from statecache.settings import pin_difference

if TYPE_CHECKING:
    from statecache.core.redis.installation import Pairing
    from statecache.keys import KeySpace
    from statecache.resp import Command
    from statecache.settings import Settings


T = TypeVar("T")
_QUEUED = 1.25
"""For how many times as long as Postgres may be silent a connection waits for another one's comparison with it."""


class RedisTier:
    """The exchanges of a client with the Redis primary."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        *,
        dial: Dial | None = None,
        pairing: Pairing | None = None,
        io: Concurrency = TASKS,
    ) -> None:
        self.io = io
        self.opened_at = 0.0
        """When a connection was opened last, on this process' clock."""
        self.clock = ServerClock()
        self._settings = settings
        self._keys = keys
        self._pairing = pairing
        self._dial = dial or dialer(settings, io=io)
        self._dial_tracked = None if dial else dialer(settings, io=io, protocol=3)
        self._asked = commands(keys, self._needed, first_and_last(keys))
        self.cluster = ""
        self.lacks_rights = False
        """Whether the last handshake said that the user may not run all that is needed."""
        self.pool: Pool[Link] = Pool(
            self.link, io=io, size=settings.redis_connections_max, busy=RedisUnavailable,
            late=self._late, connect_timeout_s=settings.connect_timeout_s, what="Redis",
        )  # fmt: skip

    def _late(self, error: TimeoutError) -> StateCacheError:
        """Return the error of who had no time to wait for a connection, which may have waited for Postgres."""
        if self._pairing is not None and self._pairing.asks:
            return self._pairing.late(error)
        return not_opened(error, self._settings)

    @property
    def _needed(self) -> tuple[str, ...]:
        return (*CLIENT, *FENCED) if self._settings.fence == "on" else CLIENT

    @property
    def tracks(self) -> bool:
        """Whether there can be connections to which the server pushes what was written."""
        return self._dial_tracked is not None

    async def link(self, seconds: float | None = None) -> Link:
        """Open one connection, with its handshake, outside of the pool."""
        return await self._connected(self._dial, seconds)

    async def unpinned_link(self) -> Link:
        """Open one connection to a primary outside of the pool, whatever it is pinned to and this user may run there.

        Raises ConfigurationError for a node of a Redis Cluster and a sentinel, RedisUnavailable for a replica.
        """
        link = await Link.open(self._dial, self._settings, io=self.io)
        try:
            await self._asked_of_primary(link, "", self._settings.connect_timeout_s)
        except BaseException:  # nor is one to what is refused
            await link.close()
            raise
        return link

    async def look_again(self, seconds: float) -> None:
        """Learn anew to which cluster the server belongs, if it answers."""
        with suppress(RedisUnavailable):
            link = await self.link(seconds)
            await link.close()

    async def tracked_link(self) -> Link:
        """Open a connection to which the server pushes the names of keys that were read on it and written since.

        Raises ConfigurationError where the server, or a proxy before it, does not do that.
        """
        if self._dial_tracked is None:
            raise ConfigurationError("connections that are dialled by hand are not tracked")
        try:
            link = await self._connected(self._dial_tracked, None)
        except RedisUnavailable as error:
            if not is_refused(error):
                raise
            await (await self.link()).close()  # which fails alike, unless it is RESP3 alone that is refused
            what = "the server does not track what is read, for it refuses HELLO 3"
            raise ConfigurationError(f"{what}: {error.detail}") from error
        # With NOLOOP the server would not push what it evicts or expires while a command of this connection runs.
        tracking = ("CLIENT", "TRACKING", "ON", "OPTIN")
        asked = [tracking, ("CLIENT", "CACHING", "YES"), ("TIME",)]  # which names no key
        *replies, _ = await link.run(asked, seconds=self._settings.connect_timeout_s)
        refused = [reply for reply in replies if reply != b"OK"]
        if refused:
            await link.close()
            raise ConfigurationError(f"the server does not track what is read: {refused[0]}")
        link.hear_invalidations()
        return link

    async def _connected(self, dial: Dial, seconds: float | None) -> Link:
        """Open a connection, in so many seconds; without these, Postgres has a time of its own to be compared in."""
        most = self._settings.connect_timeout_s
        end = monotonic() + (most if seconds is None else seconds)
        link = await Link.open(dial, self._settings, end - monotonic(), io=self.io)
        try:
            await self._handshake(link, min(max(end - monotonic(), 0.001), most))
            if self._pairing is not None and self.cluster:
                left = most * _QUEUED if seconds is None else max(end - monotonic(), 0.001)
                await self._pairing.compare(self.cluster, left)
        except BaseException:  # a connection without a handshake is never used
            await link.close()
            raise
        self.opened_at = monotonic()
        return link

    async def _handshake(self, link: Link, seconds: float) -> None:
        keys = self._keys
        sent, booted = monotonic(), boottime()
        asked = ";".join(self._asked)  # one text: to a stranger a server lends few words
        shards, hashed, prefix, schema, cluster, now_ms, _, *refused = await self._asked_of_primary(
            link, asked, seconds
        )
        self.lacks_rights = False
        if refused:
            raise await self.hindered(link, Rights(self._asked, refused), self._needed, seconds=seconds)
        self.clock.heard(now_ms, booted)
        link.ahead_ms, link.handshake_s = int(now_ms) - sent * 1000, monotonic() - sent
        self.cluster = cluster
        if not shards:
            return
        found = {"shards": shards, "hash": hashed, "prefix": prefix, "postgres_schema": schema}
        ours = (str(keys.shards), HASH, keys.prefix, self._settings.postgres_schema)
        difference, remedy = pin_difference(found, dict(zip(found, ours, strict=True)))
        if difference:
            raise ConfigurationError(f"this Redis is {difference}", hint=f"{remedy[0].upper()}{remedy[1:]}.")

    async def _asked_of_primary(self, link: Link, commands: str, seconds: float) -> list[str]:
        """Return what the handshake tells, with what is in the way of these commands; refuse all but a primary."""
        try:
            asked = [self._settings.fence, commands]
            reply = await link.script(script("handshake"), [self._keys.meta(0)], asked, seconds=seconds)
        except ResponseError as error:
            raise await self._no_handshake(link, error, seconds) from error
        told = [part.decode("utf-8", "replace") for part in reply]
        role = told[6]
        if role == "cluster":
            self.lacks_rights = False
            raise of_cluster()
        if role not in ("master", ""):
            raise no_primary(self._settings, f"it is a {role}")
        return told

    async def _no_handshake(self, link: Link, error: ResponseError, seconds: float) -> StateCacheError:
        """Return the error for a server that does not run the handshake."""
        code, self.lacks_rights = code_of(error), False
        if code in CLUSTER:
            return of_cluster(answer_of(error))
        if code in AGAIN:
            reason = "role" if code in DEMOTED else "busy" if code == "BUSY" else "loading"
            return RedisUnavailable(reason, detail=str(error))
        if code == "NOPERM":
            told = refusal(error, self._keys.meta(0))
            self.lacks_rights = True
            return await self.hindered(link, Rights((), ()), self._needed, seconds=seconds, otherwise=told)
        try:
            (info,) = await link.run([("INFO", "server")], seconds=seconds)
        except RedisUnavailable as closed:
            return hung_up(error, closed, self._settings)
        if is_sentinel(info):
            return of_sentinel()
        return ConfigurationError(f"Redis refuses the handshake: {error}", hint=SERVERS)

    async def hindered(
        self, link: Link, found: Rights, needed: Sequence[str], *, seconds: float,
        otherwise: StateCacheError | None = None,
    ) -> StateCacheError:  # fmt: skip
        """Return the error for what this server lacks, or this user, who is asked about all shards for that.

        It is `otherwise` where nothing that is asked for is refused, or this user may not even ask.
        """
        if not found.unknown:
            first = found
            with suppress(ResponseError):
                found = await rights(link, commands(self._keys, needed, shards_to_ask(self._keys)), seconds=seconds)
            found = found if found.answer else first  # what was refused then may have been granted since
        if found.unknown:
            return ConfigurationError(f"this Redis server lacks {', '.join(found.unknown)}", hint=SERVERS)
        if not found.refused and otherwise is not None:
            return otherwise
        self.lacks_rights = True
        return ConfigurationError(f"the Redis user {found.refused}", hint=GRANT)

    async def exchange(self, commands: Sequence[Command], *, seconds: float, patience: float = 1.0) -> list[Any]:
        """Run commands on one connection, once, and return their replies, error replies as values.

        `patience` is the share of `seconds` for which the answer is waited for.
        """
        end = monotonic() + seconds
        link = await self.pool.take(seconds)
        try:
            replies = await link.run(commands, seconds=max((end - monotonic()) * patience, 0.001))
            if replies and isinstance(replies[0], ResponseError) and code_of(replies[0]) in DEMOTED:
                await self.leave(link)
                raise no_primary(self._settings, str(replies[0]))
            return replies
        except RedisUnavailable:
            await self.pool.drop_idle()
            raise
        finally:
            self.pool.give(link)

    async def script(
        self, name: str, keys: Sequence[str], args: Sequence[Any], *, seconds: float, ahead: bool = False
    ) -> Any:
        """Run the named script once and return its reply; raise an error reply as redis-py's error.

        `ahead` goes before others who wait for a connection.
        """
        end = monotonic() + seconds
        link = await self.pool.take(seconds, ahead=ahead)
        try:
            return await link.script(script(name), keys, args, seconds=max(end - monotonic(), 0.001))
        except RedisUnavailable:
            await self.pool.drop_idle()
            raise
        except ResponseError as error:
            if code_of(error) in DEMOTED:
                await self.leave(link)
            raise
        finally:
            self.pool.give(link)

    async def leave(self, link: Link) -> None:
        """Close a connection to a server that must not be asked any more, and the idle ones with it."""
        await link.close()
        await self.pool.drop_idle(all_of_them=True)

    async def read(self, commands: Sequence[Command], *, seconds: float) -> list[Any]:
        """Run commands that change nothing, again after a fault, for at most that many seconds in all."""
        return await self._again(
            lambda left: self.exchange(commands, seconds=left, patience=patience_for(left)), seconds
        )

    async def read_script(
        self, name: str, keys: Sequence[str], args: Sequence[Any], *, behind: Sequence[Command] = (), seconds: float,
        again: bool = True,
    ) -> list[Any]:  # fmt: skip
        """Run a script that changes nothing and the commands in `behind`, and return its reply and theirs in one list.

        It is run again after a fault, and on another connection where the server is not the primary, unless `again` is
        False; another error reply of the script is raised as redis-py's error.
        """
        if not again:
            return await self._scripts_once(name, [(keys, args)], behind, seconds)
        return await self._again(lambda left: self._scripts_once(name, [(keys, args)], behind, left), seconds)

    async def read_scripts(
        self, name: str, calls: Sequence[tuple[Sequence[str], Sequence[Any]]], *, seconds: float
    ) -> list[Any]:
        """Run a script that changes nothing once with each of these keys and arguments, all in one exchange.

        Return the replies; faults are met as in `read_script`, and the first error reply is raised.
        """
        return await self._again(lambda left: self._scripts_once(name, calls, (), left), seconds)

    async def _scripts_once(
        self, name: str, calls: Sequence[tuple[Sequence[str], Sequence[Any]]], behind: Sequence[Command], seconds: float
    ) -> list[Any]:
        end, which = monotonic() + seconds * patience_for(seconds), script(name)
        link = await self.pool.take(seconds)
        try:
            replies = await link.run([*_called(link, which, calls), *behind], seconds=max(end - monotonic(), 0.001))
            if any(isinstance(reply, NoScriptError) for reply in replies[: len(calls)]):
                link.knows(which, False)
                replies = await link.run([*_called(link, which, calls), *behind], seconds=max(end - monotonic(), 0.001))
            for reply in replies[: len(calls)]:
                if isinstance(reply, ResponseError):
                    if code_of(reply) == "BUSY":
                        raise RedisUnavailable("busy", detail=answer_of(reply))
                    if code_of(reply) not in DEMOTED:
                        raise reply
                    await self.leave(link)
                    raise no_primary(self._settings, str(reply))
            return replies
        except RedisUnavailable:
            await self.pool.drop_idle()
            raise
        finally:
            self.pool.give(link)

    async def _again(self, attempt: Callable[[float], Awaitable[T]], seconds: float) -> T:
        """Return the result of an attempt, which is told its seconds and made again after a fault.

        Where the end cut an attempt off, what the one before it met is raised, which tells more than that time was up.
        """
        end, telling = monotonic() + seconds, None
        try:
            return await attempt(seconds)
        except RedisUnavailable as error:
            if error.reason in (*FINAL, "pool") or monotonic() >= end:
                raise
            if error.reason in ("role", "loading", "busy"):
                telling = error
            last = error
        async for again in AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, RedisUnavailable) and error.reason not in FINAL),
            wait=wait_random_exponential(multiplier=0.02, max=0.5),
            stop=stop_after_delay(end - monotonic()),
            sleep=self.io.sleep,
            reraise=True,
        ):
            with again:
                try:
                    return await attempt(max(end - monotonic(), 0.001))
                except RedisUnavailable as error:
                    if error.reason in ("connect", "timeout", "pool"):
                        if telling is not None:
                            raise telling from error
                        if monotonic() + LATE_S > end:
                            raise last from error
                    last = error
                    raise
        raise AssertionError("tenacity gives a result or raises")


def _called(link: Link, which: Script, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Command]:
    """Return the commands that run a script once for each call; its text, where it is needed, goes with the first."""
    commands = []
    for keys, args in calls:
        commands.append(link.call(which, keys, args))
        link.knows(which, True)
    return commands


def patience_for(seconds: float) -> float:
    """Return the share of the time for one attempt: half, so that another one can follow, unless that is too little."""
    return 0.5 if seconds > 0.2 else 1.0
