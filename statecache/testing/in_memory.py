"""Clients on nothing but this process, for unit tests: fakeredis in the place of Redis, dictionaries for Postgres.

The commits, reads, locks and steps are the real ones, with the real scripts. What has no meaning within one process is
refused or absent: see `memory`.
"""

from __future__ import annotations

import queue
from typing import Any
from weakref import ref

import fakeredis
import redis

from statecache._async.client import AsyncStateCache
from statecache._sync.client import StateCache
from statecache.concurrency import TASKS, THREADS, Concurrency
from statecache.core.commit.durability_support import COPIED, DurabilitySupport
from statecache.core.runtime import Runtime
from statecache.errors import DurabilityRefused
from statecache.keys import HASH, KeySpace
from statecache.lua import names, script
from statecache.settings import Settings, with_values
from statecache.testing.memory_postgres import CLUSTER, EPOCH, MemoryPostgres, Tables

_FIXED = {
    "redis_url": "redis://in-memory", "postgres_url": "postgresql://in-memory", "fence": "off", "near_bytes_max": 0,
}  # fmt: skip
_WRITES = (b"XADD", b"EXEC", script("commit").sha.encode())
"""What stands in a command that may add to a stream: the commit script, its name, or a transaction's end."""


_FLAGS, _COMMENT = b"#!lua", b"--lua"
_CLOSED = object()


class _AsyncConnection(fakeredis.FakeAsyncRedisConnection):  # type: ignore[misc]
    """A connection behind which what commits have added is taken over as soon as it is there."""

    tables: Tables

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        spelled = _readable(command)
        await super().send_packed_command([spelled], check_health)
        if _writes(spelled):
            self.tables.take_over()


class _Replies(queue.Queue[Any]):
    """The replies that stand for a socket's bytes, waited for as long as a socket's timeout would have it."""

    _seconds: float | None = None

    def patience(self) -> float | None:
        """Return the timeout in seconds."""
        return self._seconds

    def wait_for(self, seconds: float | None) -> None:
        """Set the timeout."""
        self._seconds = seconds

    def hang_up(self, _how: int) -> None:
        """Wake the thread that waits."""
        self.put(_CLOSED)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next reply; raise what a socket raises that is late or closed."""
        try:
            reply = super().get(block, self._seconds if timeout is None else timeout)
        except queue.Empty:
            raise redis.TimeoutError("there is no reply yet") from None
        if reply is _CLOSED:
            raise redis.ConnectionError("closed")
        return reply


class _SyncConnection(fakeredis.FakeRedisConnection):  # type: ignore[misc]
    """The same for the synchronous client."""

    tables: Tables

    def _connect(self) -> Any:
        socket = super()._connect()
        socket.responses = replies = _Replies()
        socket.gettimeout, socket.settimeout, socket.shutdown = replies.patience, replies.wait_for, replies.hang_up
        return socket

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        spelled = _readable(command)
        super().send_packed_command([spelled], check_health)
        if _writes(spelled):
            self.tables.take_over()


def _readable(command: Any) -> bytes:
    """Return a command with a script's flags, for which fakeredis has no word, as a comment of the same length."""
    spelled = command if isinstance(command, bytes) else b"".join(command)
    return spelled.replace(_FLAGS, _COMMENT)


def _writes(spelled: bytes) -> bool:
    """Return whether a command may have added to a stream."""
    return any(word in spelled for word in _WRITES)


class _Support(DurabilitySupport):
    def check(self, level: str) -> None:
        """Raise DurabilityRefused for a level that counts copies: there are none."""
        if level in COPIED:
            raise DurabilityRefused(level, reason="everything is in this process's memory")
        if level != "postgres":  # which dictionaries stand for
            super().check(level)


class Memory:
    """A deployment in memory: a block of it is a client, and more clients share its states."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = Settings(**{"shards": 4, **settings, **_FIXED})
        self._keys = KeySpace(self.settings.prefix, self.settings.shards)
        self._server = fakeredis.FakeServer()
        for one in map(script, names()):  # those with flags are found by the digests of what they really are
            self._server.script_cache[one.sha.encode()] = _readable(one.text.encode())
        self._redis: Any = fakeredis.FakeRedis(server=self._server)
        self._tables = Tables(self._keys, self._redis)
        for shard in range(self._keys.shards):
            self._open(shard)
        self._entered: list[Any] = []

    def _open(self, shard: int) -> None:
        """Open a shard's gate at the one epoch that there will ever be."""
        keys, settings = self._keys, self.settings
        fixed = [keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.hydrating(shard)]
        fixed += [keys.leases(shard), keys.waiters(shard)]
        self._redis.hset(keys.meta(shard), "reservation", "-")
        pin = [settings.shards, HASH, settings.prefix, settings.postgres_schema, CLUSTER]
        given = ["-", "off", "off", EPOCH, *[0] * 7, *pin, "0"]
        self._redis.eval(script("gate_open").text, len(fixed), *fixed, *given)

    def client(self, **settings: Any) -> StateCache:
        """Return a client of its states, as another process would have one; `settings` are its own."""
        return StateCache._on(self._runtime(settings, _SyncConnection, THREADS))

    def async_client(self, **settings: Any) -> AsyncStateCache:
        """Return an asynchronous client of its states; `settings` are its own."""
        return AsyncStateCache._on(self._runtime(settings, _AsyncConnection, TASKS))

    def _runtime(self, settings: dict[str, Any], kind: type[Any], io: Concurrency) -> Runtime:
        ours = with_values(self.settings, {**settings, **_FIXED})

        def dial() -> Any:
            connection = kind(server=self._server)
            connection.tables = self._tables
            return connection

        postgres = MemoryPostgres(ours, self._keys, self._tables, io=io)
        runtime = Runtime(ours, dial=dial, io=io, postgres=postgres, support=_Support(ours))
        postgres.runtime = ref(runtime)
        return runtime

    def __enter__(self) -> StateCache:
        self._entered.append(client := self.client())
        return client

    def __exit__(self, *exc_info: object) -> None:
        self._entered.pop().close()

    async def __aenter__(self) -> AsyncStateCache:
        self._entered.append(client := self.async_client())
        return client

    async def __aexit__(self, *exc_info: object) -> None:
        await self._entered.pop().close()
