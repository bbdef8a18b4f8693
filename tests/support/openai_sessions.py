"""What sessions of the OpenAI Agents SDK may stand on, each a maker of sessions by their id.

flushed        one client, and a worker that is at work beside it
paused         one client, and no worker: nothing is in Postgres
emptied        before every read all is flushed, and Redis loses every state that is clean
alternating    two clients, whose turn it is call by call
on_settings    sessions with clients of their own
in_memory      what stands for servers in unit tests
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, cast

from statecache import AsyncStateCache, Settings
from statecache.adapters.openai_agents import StateCacheSession
from statecache.keys import KeySpace
from statecache.testing import memory
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing
from tests.support.dirtiness import evict

MakeSession = Callable[..., StateCacheSession]


def items(count: int, *, since: int = 0) -> list[Any]:
    """Return items that are told apart by their numbers."""
    return [{"role": "user", "content": f"{number} {'x' * (number % 7 * 100)}"} for number in range(since, count)]


class World:
    """A deployment: its settings, a worker of it, and a plain client of its Redis."""

    def __init__(self, settings: Settings, worker: Worker, raw: Any) -> None:
        self.settings, self.worker, self.raw = settings, worker, raw
        self._flushing = asyncio.Lock()

    async def empty(self) -> int:
        """Flush, and take every clean state away from Redis; return how many."""
        async with self._flushing:
            await flush(self.worker)
        keys = KeySpace(self.settings.prefix, self.settings.shards)
        names = [keys.key_of(name) for name in self.raw.scan_iter(keys.every_state())]
        return sum(evict(self.raw, keys, name) for name in names)


Kind = Callable[[World], AbstractAsyncContextManager[MakeSession]]


class Emptied(StateCacheSession):
    """A session whose Redis is emptied before every read."""

    world: World
    emptied = 0

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Empty Redis, and read."""
        self.emptied += await self.world.empty()
        return await super().get_items(limit)

    async def pop_item(self) -> Any:
        """Empty Redis, and pop."""
        self.emptied += await self.world.empty()
        return await super().pop_item()


class Alternating:
    """Two sessions of one id, of which each call takes the other one."""

    def __init__(self, *sessions: StateCacheSession) -> None:
        self._sessions = [*sessions]

    def __getattr__(self, name: str) -> Any:
        self._sessions.append(self._sessions.pop(0))
        return getattr(self._sessions[0], name)


def _in_turn(name: str) -> property:
    return property(lambda alternating: alternating.__getattr__(name))


for _name in ("session_id", "session_settings", "get_items", "add_items", "pop_item", "clear_session"):
    # By these the SDK knows a session; what `__getattr__` finds does not count from Python 3.12 on.
    setattr(Alternating, _name, _in_turn(_name))


@asynccontextmanager
async def flushed(world: World) -> AsyncIterator[MakeSession]:
    """Sessions of one client, while a worker is at work."""
    async with AsyncStateCache(settings=world.settings) as cache, flushing(world.worker):
        yield lambda session_id, **more: StateCacheSession(session_id, cache, **more)


@asynccontextmanager
async def paused(world: World) -> AsyncIterator[MakeSession]:
    """Sessions of one client, without a worker."""
    async with AsyncStateCache(settings=world.settings) as cache:
        yield lambda session_id, **more: StateCacheSession(session_id, cache, **more)


@asynccontextmanager
async def emptied(world: World) -> AsyncIterator[MakeSession]:
    """Sessions of one client, whose Redis is emptied before every read."""
    async with AsyncStateCache(settings=world.settings) as cache:

        def make(session_id: str, **more: Any) -> StateCacheSession:
            session = Emptied(session_id, cache, **more)
            session.world = world
            return session

        yield make


@asynccontextmanager
async def alternating(world: World) -> AsyncIterator[MakeSession]:
    """Sessions of two clients in turn."""
    async with AsyncStateCache(settings=world.settings) as one, AsyncStateCache(settings=world.settings) as other:
        yield lambda session_id, **more: cast(
            "StateCacheSession", Alternating(*(StateCacheSession(session_id, cache, **more) for cache in (one, other)))
        )


@asynccontextmanager
async def on_settings(world: World) -> AsyncIterator[MakeSession]:
    """Sessions that each make a client."""
    async with AsyncExitStack() as made:

        def make(session_id: str, **more: Any) -> StateCacheSession:
            session = StateCacheSession.from_settings(session_id, world.settings, **more)
            made.push_async_callback(session.close)
            return session

        yield make


@asynccontextmanager
async def in_memory(world: World) -> AsyncIterator[MakeSession]:
    """Sessions on what stands for servers in unit tests."""
    async with memory() as cache:
        yield lambda session_id, **more: StateCacheSession(session_id, cache, **more)


KINDS = [flushed, paused, emptied, alternating, on_settings, in_memory]
