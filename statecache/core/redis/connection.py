"""One connection to Redis: how it is opened, and how one exchange on it goes.

redis-py repeats commands by itself after a fault; ours never do: every connection is built without retries, and what
may be repeated is decided by whoever knows whether it is idempotent. An `Link` carries one exchange at a time: a
list of commands goes out, as many replies come back. Whatever goes wrong between the first byte out and the last
byte in, cancellation included, closes the connection, so that no later caller reads somebody else's reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoScriptError,
    RedisError,
    ResponseError,
)

from statecache import _process
from statecache._tls import (
    FILES,
    KeptContext,
    check_tls_files,
    files_without_tls,
    is_closed_by_peer,
    is_tls_refused,
    tls_options,
)
from statecache.clock import monotonic
from statecache.concurrency import TASKS, Concurrency, no_answer
from statecache.concurrency.sockets import is_buffered, unread_bytes
from statecache.core.pool import silent_since
from statecache.core.redis.not_opened import CHECK_TLS, not_opened, perhaps_tls
from statecache.errors import ConfigurationError, RedisUnavailable, UsageError
from statecache.resp import Command, packed
from statecache.settings import masked
from statecache.signal_errors import pass_on_below

if TYPE_CHECKING:
    from statecache.concurrency import Background, Slot
    from statecache.lua import Script
    from statecache.settings import Settings

Dial = Callable[[], Any]
"""A function that makes a redis-py connection, not yet connected."""
_MESSAGES_MAX = 16
"""How many pushed messages are returned at once."""
_ASKED = ("username", "password", "credential_provider", "client_name", "db")
"""A redis-py connection that has one of these has had an answer from the server once it is connected."""


def dialer(settings: Settings, *, protocol: int = 2, io: Concurrency = TASKS) -> Dial:
    """Return a function that makes connections to the settings' URL: no retries, bytes, in that version of RESP."""
    try:
        parse: Any = io.dialect().parse_url
        options = dict(parse(settings.redis_url))
    except ValueError as error:
        raise ConfigurationError(f"redis_url {masked(settings.redis_url)}: {error}") from None
    kind: Any = options.pop("connection_class", io.dialect().Connection)
    if settings.redis_url.startswith("rediss://"):
        options = tls_options(settings, options)
        check_tls_files(options)
    elif files := [option for option, setting in FILES.items() if getattr(settings, setting)]:
        raise files_without_tls(masked(settings.redis_url), files)
    options.update(
        retry=io.dialect().Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        retry_on_error=[],
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.connect_timeout_s,
        health_check_interval=0,
        protocol=protocol,
        driver_info=None,
        decode_responses=False,
    )
    try:
        kind(**options)
    except RedisError as error:
        raise ConfigurationError(f"redis_url {masked(settings.redis_url)}: {error}") from None
    except TypeError as error:
        unknown = str(error).rpartition(" ")[2]
        raise ConfigurationError(
            f"redis_url {masked(settings.redis_url)}: no connection has an option {unknown}"
        ) from None
    context = KeptContext(options)
    return lambda: context.shared_by(kind(**options))


class Link:
    """One connection to a Redis server; it carries one exchange at a time, and the first that fails closes it.

    `watching` says whether the server may still watch keys for this connection. `expected` is for callers that send and
    receive separately: what the replies to come are for; `in_message` is true while one is being read, and where it
    stays so, the reader was interrupted, and nobody knows what is lost. `ahead_ms` is how far the server's clock is
    ahead of `monotonic` here at most, in milliseconds, as of the handshake; the true value may be less by
    `handshake_s`, the seconds that it took. `support` are durability levels that the server was found to be able to
    give, each with the moment; `heard_at` and `silent_since` are for the pool.
    """

    __slots__ = (
        "__weakref__",
        "_connection",
        "_known",
        "_line",
        "_made_at",
        "_pid",
        "_turn",
        "_where",
        "ahead_ms",
        "arrivals",
        "expected",
        "handshake_s",
        "heard_at",
        "hold",
        "in_message",
        "io",
        "silent_since",
        "slot",
        "support",
        "watching",
    )  # fmt: skip

    def __init__(self, connection: Any, where: str, io: Concurrency) -> None:
        self.io = io
        self._connection = connection
        self._line = io.line(connection)
        self._known: set[str] = set()
        self._where = where
        self._pid = _process.pid
        self._turn = io.turn()
        self.arrivals = io.arrivals(connection)
        self.watching = False
        self.in_message = False
        self.expected: deque[Any] = deque()
        self.ahead_ms = 0.0
        self.handshake_s = 0.0
        self.support: dict[str, float] = {}
        self.heard_at = self._made_at = monotonic()
        self.silent_since = -inf
        self.slot: Slot | None = None
        self.hold: Slot | None = None

    @classmethod
    async def open(cls, dial: Dial, settings: Settings, seconds: float = inf, *, io: Concurrency = TASKS) -> Link:
        """Connect, each step within that many seconds; raise RedisUnavailable with the masked URL and the reason.

        A database that the server does not have is a ConfigurationError.
        """
        where = masked(settings.redis_url)
        connection = dial()
        line = io.line(connection)
        connection.socket_connect_timeout = min(seconds, settings.connect_timeout_s)
        connected = False
        try:
            async with io.dialing(connection, min(seconds, settings.timeout_s)):
                await line.connect()
            connected = True
        except (RedisError, OSError, TimeoutError) as error:
            pass_on_below(error)
            raise not_opened(error, settings) from error
        finally:
            if not connected:
                await line.disconnect(nowait=True)
        io.stay_closed(connection)
        link = cls(connection, where, io)
        if any(getattr(connection, name, None) for name in _ASKED):
            link._made_at = -inf
        return link

    @property
    def alive(self) -> bool:
        """Whether the connection still stands, as far as this side knows; a forked child has none."""
        return self._pid == _process.pid and bool(self._connection.is_connected)

    def call(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Command:
        """Return the command that runs a script: by digest once this connection has seen it run."""
        if script.sha in self._known:
            return ("EVALSHA", script.sha, len(keys), *keys, *args)
        return ("EVAL", script.text, len(keys), *keys, *args)

    async def run(
        self, commands: Sequence[Command], *, seconds: float, until: Callable[[Any], bool] | None = None
    ) -> list[Any]:
        """Send the commands at once, and return their replies in order.

        An error reply stands in its place as an exception value. RedisUnavailable means that the exchange broke and the
        connection is closed: the commands may or may not have run. Where `until` returns True for a reply, no further
        one is waited for, and the connection is closed too.
        """
        connection, line = self._connection, self._line
        if self._pid != _process.pid:
            raise UsageError("the connection belongs to another process", hint="Begin anew in a forked child.")
        if not connection.is_connected:
            raise RedisUnavailable("connection", detail=f"{self._where}: the connection is closed")
        spelled = packed(commands)
        replies: list[Any] = []
        whole, sent, bound = False, monotonic(), self.io.deadline(connection, seconds)
        try:
            async with bound:
                await line.send_packed_command(spelled)
                for _ in commands:
                    try:
                        replies.append(await line.read_response())
                    except ResponseError as error:
                        replies.append(error)
                    if until is not None and until(replies[-1]):
                        return replies
            whole, self.heard_at = True, monotonic()
        except TimeoutError as error:
            pass_on_below(error)
            self.silent_since = silent_since(sent)
            raise RedisUnavailable("timeout", detail=f"{self._where}: {no_answer(seconds, bound.late_s)}") from error
        except (RedisError, OSError) as error:
            pass_on_below(error)
            refused = "authentication" if isinstance(error, AuthenticationError) else "connection"
            reason = "timeout" if "imeout" in type(error).__name__ else "tls" if is_tls_refused(error) else refused
            self.silent_since = silent_since(sent) if reason == "timeout" else monotonic()
            hint = CHECK_TLS if reason == "tls" else ""
            if self.heard_at == self._made_at and not replies and is_closed_by_peer(error):
                hint = perhaps_tls(self._where)
            raise RedisUnavailable(reason, detail=f"{self._where}: {error}", hint=hint) from error
        finally:
            if not whole:
                await self.close()
        return replies

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Any], *, seconds: float) -> Any:
        """Run one script and return its reply; raise an error reply.

        A script whose digest the server has forgotten has not run, so its text is sent.
        """
        end = monotonic() + seconds
        reply = (await self.run([self.call(script, keys, args)], seconds=seconds))[0]
        if isinstance(reply, NoScriptError):
            self.knows(script, False)
            left = max(end - monotonic(), 0.001)
            reply = (await self.run([self.call(script, keys, args)], seconds=left))[0]
        if isinstance(reply, Exception):
            raise reply
        self._known.add(script.sha)
        return reply

    async def scripts(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Any]]], *, seconds: float
    ) -> list[Any]:
        """Run one script many times in one pipeline, and return the replies; raise an error reply."""
        if not calls:
            return []
        first = await self.script(script, *calls[0], seconds=seconds)
        replies = await self.run([self.call(script, *call) for call in calls[1:]], seconds=seconds) if calls[1:] else []
        for at, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                replies[at] = await self.script(script, *calls[1 + at], seconds=seconds)
            elif isinstance(reply, Exception):
                raise reply
        return [first, *replies]

    def knows(self, script: Script, known: bool) -> None:
        """Note whether the server has seen the script, so that the next call sends its digest or its text."""
        (self._known.add if known else self._known.discard)(script.sha)

    async def send(self, *commands: Command, seconds: float, expected: Sequence[Any] = ()) -> None:
        """Send commands whose answers arrive among pushed messages; note `expected` as what they are for.

        A caller that is interrupted meanwhile, by a signal handler for instance, leaves a closed connection: nobody
        would know how much was sent, and so which answer belongs to which command.
        """
        if not self.alive:
            raise RedisUnavailable("connection", detail=f"{self._where}: the connection is closed")
        sent = False
        try:
            self.expected += expected
            async with self.io.sending(self._connection, seconds, self._turn):
                await self._line.send_packed_command(packed(commands))
            sent = True
        except (RedisError, OSError, AttributeError) as error:  # the last: closed by another thread
            pass_on_below(error)
            raise RedisUnavailable("connection", detail=f"{self._where}: {error}") from error
        finally:
            if not sent:
                await self.close()

    async def receive(self, *, seconds: float) -> list[Any]:
        """Return the pushed messages that have arrived; wait for the first one for at most that many seconds."""
        messages: list[Any] = []
        try:
            async with self.io.receiving(self._connection, seconds, self._turn):
                while not messages or (self.buffered and len(messages) < _MESSAGES_MAX):
                    messages.append(await self._line.read_response(disconnect_on_error=False))
        except (TimeoutError, RedisError, OSError) as error:
            await self._pass_on(error)
            if "imeout" not in type(error).__name__:
                await self.close()
                if not messages:
                    raise RedisUnavailable("connection", detail=f"{self._where}: {error}") from error
        return messages

    async def has_news(self, seconds: float) -> bool:
        """Wait until something has arrived, where a thread may wait without reading; return whether it has."""
        return bool(await self.arrivals.wait(seconds, self._turn))

    @property
    def buffered(self) -> bool:
        """Whether a message, or a part of one, was taken off the socket that nobody has been given yet."""
        return is_buffered(self._connection)

    @property
    def unread_bytes(self) -> int:
        """How many bytes of incomplete messages have been taken off the socket."""
        return unread_bytes(self._connection)

    def hear_invalidations(self) -> None:
        """Have pushes of invalidated keys returned by `heard`, on a connection that speaks RESP3."""
        self.io.pass_on_invalidations(self._connection)

    async def heard(self, *, seconds: float) -> Any:
        """Return the next reply (an error reply as a value) or pushed message; None where none arrives in that time."""
        try:
            async with self.io.receiving(self._connection, seconds, self._turn):
                return await self._line.read_response(disconnect_on_error=False, push_request=True)
        except ResponseError as error:
            return error
        except (TimeoutError, RedisError, OSError, AttributeError) as error:  # the last: closed by another thread
            await self._pass_on(error)
            if "imeout" in type(error).__name__:
                return None
            await self.close()
            raise RedisUnavailable("connection", detail=f"{self._where}: {error}") from error

    async def _pass_on(self, error: Exception) -> None:
        """Raise what a signal handler raised, and close the connection: how much was read nobody knows."""
        try:
            pass_on_below(error)
        except BaseException:  # a handler may raise anything
            await self.close()
            raise

    def abandon(self) -> None:
        """Part with a forked parent's connection; an asyncio one stays quiet as long as it is referenced."""
        self.arrivals.close()
        self.io.disown(self._connection)

    def let_go(self) -> None:
        """Close a connection that nobody uses any more, without waiting; an asyncio one closes with its transport."""
        self.io.disown(self._connection)

    def hang_up(self) -> None:
        """Wake a thread that waits for a pushed message; a task is woken by being cancelled."""
        self.io.wake(self._connection)

    async def close(self) -> None:
        """Close the connection without waiting for anything that is under way on it."""
        await self._line.disconnect(nowait=True)

    async def sever(self) -> None:
        """Shut the socket of a connection that another task or thread may be using."""
        await self.io.sever(self._line)

    async def end(self) -> None:
        """Close an idle connection, and wait until it is closed: TLS takes leave of the other side."""
        with suppress(RedisError, OSError):
            await self._line.disconnect()


def let_go(background: Background | None, link: Link | None) -> None:
    """End a background task and its connection, without waiting."""
    if background is not None:
        background.let_go()
    if link is not None:
        link.hang_up()
