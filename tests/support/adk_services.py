"""Session services of ADK on all that they may stand on, and events for them that are told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.genai.types import Content, Part

from statecache import AsyncStateCache
from statecache.adapters.adk import StateCacheSessionService
from tests.support.openai_sessions import World
from tests.support.standing_on import kinds

MakeService = Callable[..., StateCacheSessionService]
WHOSE: dict[str, Any] = {"app_name": "orders", "user_id": "alice"}
ID: dict[str, Any] = {**WHOSE, "session_id": "42"}
GROUP = "adk/orders:alice:42"
CHANGES: dict[str, Any] = {"app:n": 1, "user:n": 1, "n": 1}
"""A change of all that an event may change."""


def event(text: str = "", *, changes: dict[str, Any] | None = None, **more: Any) -> Event:
    """Return an event of a user, with a text and with what it changes in the state."""
    content = Content(role="user", parts=[Part(text=text)])
    return Event(author="user", content=content, actions=EventActions(state_delta=changes or {}), **more)


def texts(events: Iterable[Event]) -> list[str]:
    """Return what events say."""
    return [part.text or "" for one in events if one.content for part in one.content.parts or ()]


async def names(cache: AsyncStateCache) -> list[str]:
    """Return the keys of the session's states."""
    return [state.key async for state in cache.list(GROUP, values=False)]


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


KINDS = kinds(StateCacheSessionService, Emptied)
