"""What stores for LlamaIndex may stand on, and whether they are called or awaited: makers of stores that are asked.

flushing       one client, and a worker that is at work beside it
unflushed      one client, and no worker: nothing is in Postgres
cold           before every call all is flushed, and Redis loses every state that is clean
two_clients    two clients, whose turn it is call by call
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from llama_index.core.llms import ChatMessage

from statecache import AsyncStateCache, Settings, StateCache
from statecache.testing import memory
from tests.fixtures.flusher import flushing
from tests.support.openai_sessions import World

VARIANTS = [
    "awaited async_client flushing", "awaited async_client cold", "awaited async_client two_clients",
    "called sync_client unflushed", "called sync_client cold", "called sync_client two_clients",
    "awaited settings unflushed", "called settings flushing", "awaited sync_client unflushed",
    "called async_client unflushed", "awaited memory unflushed", "called memory unflushed",
]  # fmt: skip
_AWAITED = {"add_message": "async_add_message"}


def messages(count: int, *, since: int = 0, size: int = 0) -> list[ChatMessage]:
    """Return messages that are told apart by their numbers."""
    return [ChatMessage(content=f"{number} {'x' * size}") for number in range(since, count)]


class Asked:
    """Stores that hold the same, of which each call takes the next one; every verb of it is awaited."""

    def __init__(
        self, stores: list[Any], *, called: bool = False, between: Callable[[], Awaitable[Any]] | None = None
    ) -> None:
        self.stores, self._called, self._between = stores, called, between

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def ask(*arguments: Any, **options: Any) -> Any:
            if self._between is not None:
                await self._between()
            self.stores.append(self.stores.pop(0))
            store = self.stores[0]
            if self._called:
                return await asyncio.to_thread(getattr(store, verb), *arguments, **options)
            return await getattr(store, _AWAITED.get(verb, f"a{verb}"))(*arguments, **options)

        return ask


async def _client(stack: AsyncExitStack, kind: str, settings: Settings) -> Any:
    if kind == "settings":
        return settings
    if kind == "memory":
        return await stack.enter_async_context(memory())
    if kind == "sync_client":
        return stack.enter_context(StateCache(settings=settings))
    return await stack.enter_async_context(AsyncStateCache(settings=settings))


@asynccontextmanager
async def asked(variant: str, kind: type[Any], world: World) -> AsyncIterator[Callable[..., Asked]]:
    """Yield a maker of stores of a kind, as the variant has it."""
    calls, on, where = variant.split()
    async with AsyncExitStack() as stack:
        if where == "flushing":
            await stack.enter_async_context(flushing(world.worker))
        clients = [await _client(stack, on, world.settings) for _ in range(2 if where == "two_clients" else 1)]

        def make(**more: Any) -> Asked:
            stores = [kind(client, **more) for client in clients]
            for one in stores:
                stack.push_async_callback(one.aclose)
            return Asked(stores, called=calls == "called", between=world.empty if where == "cold" else None)

        yield make
