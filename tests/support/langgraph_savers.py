"""Savers in the settings that are hard on them, each made of a deployment whose worker flushes when it is told to.

emptied        before every read all is flushed, and Redis loses every state that is clean
flushed_late   nothing is flushed until somebody reads
alternating    two processes' clients, whose turn it is call by call, while a worker flushes
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from statecache.adapters.langgraph import StateCacheSaver
from tests.fixtures.flusher import flush, flushing
from tests.support.openai_sessions import World

Kind = Callable[[World], AbstractAsyncContextManager[StateCacheSaver]]


class Disturbed(StateCacheSaver):
    """A saver that has something done before every read."""

    loop: asyncio.AbstractEventLoop
    disturb: Callable[[], Any]
    times = 0

    def get_tuple(self, config: Any) -> Any:
        """Disturb, and read."""
        self._disturbed()
        return super().get_tuple(config)

    async def aget_tuple(self, config: Any) -> Any:
        """Disturb, and read."""
        await self._adisturbed()
        return await super().aget_tuple(config)

    def list(self, config: Any, **more: Any) -> Iterator[Any]:
        """Disturb, and list."""
        self._disturbed()
        yield from super().list(config, **more)

    async def alist(self, config: Any, **more: Any) -> AsyncIterator[Any]:
        """Disturb, and list."""
        await self._adisturbed()
        async for found in super().alist(config, **more):
            yield found

    def _disturbed(self) -> None:
        asyncio.run_coroutine_threadsafe(self._adisturbed(), self.loop).result()

    async def _adisturbed(self) -> None:
        self.times += 1
        await self.disturb()


class Alternating(StateCacheSaver):
    """Two savers as two processes have them, of which each call takes the other one."""

    def use(self, *savers: StateCacheSaver) -> None:
        """Take these from now on."""
        self._savers = [*savers]

    @property
    def _clients(self) -> Any:
        self._savers.append(self._savers.pop(0))
        return self._savers[0]._clients

    @_clients.setter
    def _clients(self, clients: Any) -> None:
        pass

    @property
    def _recent(self) -> Any:
        return self._savers[0]._recent

    @_recent.setter
    def _recent(self, recent: Any) -> None:
        pass


@asynccontextmanager
async def emptied(world: World) -> AsyncIterator[StateCacheSaver]:
    """A saver whose Redis is emptied before every read."""
    async with _disturbed(world, world.empty) as saver:
        yield saver


@asynccontextmanager
async def flushed_late(world: World) -> AsyncIterator[StateCacheSaver]:
    """A saver of which nothing is flushed until it reads."""
    turn = asyncio.Lock()

    async def late() -> None:
        async with turn:
            await flush(world.worker)

    async with _disturbed(world, late) as saver:
        yield saver


@asynccontextmanager
async def _disturbed(world: World, disturb: Callable[[], Any]) -> AsyncIterator[Disturbed]:
    async with Disturbed(world.settings) as saver:
        saver.loop, saver.disturb = asyncio.get_running_loop(), disturb
        yield saver
        assert saver.times > 0


@asynccontextmanager
async def alternating(world: World) -> AsyncIterator[StateCacheSaver]:
    """A saver that is two processes' in turn."""
    async with StateCacheSaver(world.settings) as one, StateCacheSaver(world.settings) as other:
        both = Alternating(world.settings)
        both.use(one, other)
        async with flushing(world.worker):
            yield both


KINDS: list[Kind] = [emptied, flushed_late, alternating]
