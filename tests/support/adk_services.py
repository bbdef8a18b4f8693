"""What session services of ADK may stand on, each a maker of services, and events that are told apart.

flushed        one client, and a worker that is at work beside it
paused         one client, and no worker: nothing is in Postgres
emptied        before every call all is flushed, and Redis loses every state that is clean
alternating    two clients, whose turn it is call by call
on_settings    services with clients of their own
in_memory      what stands for servers in unit tests
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.genai.types import Content, Part

from statecache import AsyncStateCache
from statecache.adapters.adk import StateCacheSessionService
from statecache.testing import memory
from tests.fixtures.flusher import flushing
from tests.support.openai_sessions import World

MakeService = Callable[..., StateCacheSessionService]
Kind = Callable[[World], AbstractAsyncContextManager[MakeService]]
WHOSE: dict[str, Any] = {"app_name": "orders", "user_id": "alice"}
ID: dict[str, Any] = {**WHOSE, "session_id": "42"}


def event(text: str = "", *, changes: dict[str, Any] | None = None, **more: Any) -> Event:
    """Return an event of a user, with a text and with what it changes in the state."""
    content = Content(role="user", parts=[Part(text=text)])
    return Event(author="user", content=content, actions=EventActions(state_delta=changes or {}), **more)


def texts(events: Iterable[Event]) -> list[str]:
    """Return what events say."""
    return [part.text or "" for one in events if one.content for part in one.content.parts or ()]


async def loaded(service: StateCacheSessionService, **which: Any) -> Session:
    """Return a session that is there."""
    session = await service.get_session(**{**ID, **which})
    assert session is not None
    return session


class Emptied(StateCacheSessionService):
    """A service whose Redis is emptied before every call."""

    world: World
    emptied = 0

    async def _empty(self) -> None:
        self.emptied += await self.world.empty()

    async def create_session(self, **more: Any) -> Any:
        """Empty Redis, and create."""
        await self._empty()
        return await super().create_session(**more)

    async def get_session(self, **more: Any) -> Any:
        """Empty Redis, and read."""
        await self._empty()
        return await super().get_session(**more)

    async def list_sessions(self, **more: Any) -> Any:
        """Empty Redis, and list."""
        await self._empty()
        return await super().list_sessions(**more)

    async def get_user_state(self, **more: Any) -> Any:
        """Empty Redis, and read."""
        await self._empty()
        return await super().get_user_state(**more)

    async def append_event(self, session: Any, event: Any) -> Any:
        """Empty Redis, and append."""
        await self._empty()
        return await super().append_event(session, event)


class Alternating(StateCacheSessionService):
    """Two services, of which each call takes the other one."""

    def __init__(self, one: AsyncStateCache, other: AsyncStateCache, **more: Any) -> None:
        super().__init__(one, **more)
        self._others = [StateCacheSessionService(cache, **more)._clients for cache in (one, other)]

    def __getattribute__(self, name: str) -> Any:
        if name == "_clients" and "_others" in vars(self):
            self._others.append(self._others.pop(0))
            return self._others[0]
        return super().__getattribute__(name)


@asynccontextmanager
async def flushed(world: World) -> AsyncIterator[MakeService]:
    """Services of one client, while a worker is at work."""
    async with AsyncStateCache(settings=world.settings) as cache, flushing(world.worker):
        yield lambda **more: StateCacheSessionService(cache, **more)


@asynccontextmanager
async def paused(world: World) -> AsyncIterator[MakeService]:
    """Services of one client, without a worker."""
    async with AsyncStateCache(settings=world.settings) as cache:
        yield lambda **more: StateCacheSessionService(cache, **more)


@asynccontextmanager
async def emptied(world: World) -> AsyncIterator[MakeService]:
    """Services of one client, whose Redis is emptied before every call."""
    async with AsyncStateCache(settings=world.settings) as cache:

        def make(**more: Any) -> StateCacheSessionService:
            service = Emptied(cache, **more)
            service.world = world
            return service

        yield make


@asynccontextmanager
async def alternating(world: World) -> AsyncIterator[MakeService]:
    """Services of two clients in turn."""
    async with AsyncStateCache(settings=world.settings) as one, AsyncStateCache(settings=world.settings) as other:
        yield lambda **more: Alternating(one, other, **more)


@asynccontextmanager
async def on_settings(world: World) -> AsyncIterator[MakeService]:
    """Services that each make a client."""
    async with AsyncExitStack() as made:

        def make(**more: Any) -> StateCacheSessionService:
            service = StateCacheSessionService.from_settings(world.settings, **more)
            made.push_async_callback(service.close)
            return service

        yield make


@asynccontextmanager
async def in_memory(world: World) -> AsyncIterator[MakeService]:
    """Services on what stands for servers in unit tests."""
    async with memory() as cache:
        yield lambda **more: StateCacheSessionService(cache, **more)


KINDS = [flushed, paused, emptied, alternating, on_settings, in_memory]
