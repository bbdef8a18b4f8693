"""What adapters that belong to event loops may stand on, each a maker of them.

flushed        one client, and a worker that is at work beside it
paused         one client, and no worker: nothing is in Postgres
emptied        before its calls all is flushed, and Redis loses every state that is clean
alternating    two clients, whose turn it is call by call
on_settings    adapters with clients of their own
in_memory      what stands for servers in unit tests
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from statecache import AsyncStateCache
from statecache.testing import memory
from tests.fixtures.flusher import flushing
from tests.support.openai_sessions import World

Make = Callable[..., Any]
Kind = Callable[[World], AbstractAsyncContextManager[Make]]


def kinds(adapter: type[Any], emptied_adapter: type[Any]) -> list[Kind]:
    """Return the kinds of an adapter; of its subclass, `world` is the one whose Redis it empties."""

    class Alternating(adapter):  # type: ignore[misc]
        """Two of them, of which each call takes the other one."""

        def __init__(self, one: AsyncStateCache, other: AsyncStateCache, **more: Any) -> None:
            super().__init__(one, **more)
            self._others = [adapter(cache, **more)._clients for cache in (one, other)]

        def __getattribute__(self, name: str) -> Any:
            if name == "_clients" and "_others" in vars(self):
                self._others.append(self._others.pop(0))
                return self._others[0]
            return super().__getattribute__(name)

    @asynccontextmanager
    async def flushed(world: World) -> AsyncIterator[Make]:
        async with AsyncStateCache(settings=world.settings) as cache, flushing(world.worker):
            yield lambda **more: adapter(cache, **more)

    @asynccontextmanager
    async def paused(world: World) -> AsyncIterator[Make]:
        async with AsyncStateCache(settings=world.settings) as cache:
            yield lambda **more: adapter(cache, **more)

    @asynccontextmanager
    async def emptied(world: World) -> AsyncIterator[Make]:
        async with AsyncStateCache(settings=world.settings) as cache:

            def make(**more: Any) -> Any:
                made = emptied_adapter(cache, **more)
                made.world = world
                return made

            yield make

    @asynccontextmanager
    async def alternating(world: World) -> AsyncIterator[Make]:
        async with AsyncStateCache(settings=world.settings) as one, AsyncStateCache(settings=world.settings) as other:
            yield lambda **more: Alternating(one, other, **more)

    @asynccontextmanager
    async def on_settings(world: World) -> AsyncIterator[Make]:
        async with AsyncExitStack() as closing:

            def make(**more: Any) -> Any:
                made = adapter.from_settings(world.settings, **more)
                closing.push_async_callback(made.close)
                return made

            yield make

    @asynccontextmanager
    async def in_memory(world: World) -> AsyncIterator[Make]:
        async with memory() as cache:
            yield lambda **more: adapter(cache, **more)

    return [flushed, paused, emptied, alternating, on_settings, in_memory]
