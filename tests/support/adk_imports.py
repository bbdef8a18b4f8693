"""ADK's own services as the sources of imports: what they are filled with, and what is then there and here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from statecache import AsyncStateCache, Settings
from statecache.adapters.adk import StateCacheSessionService
from tests.support.adk_services import event
from tests.support.vendor_schemas import vendor_schema

WHOSE = [("orders", "alice", "42"), ("orders", "bob:b", "a/1"), ("other", "alice", "42")]
EVERY: list[dict[str, Any]] = [dict(zip(("app_name", "user_id", "session_id"), one, strict=True)) for one in WHOSE]
KINDS = ["sqlite", "postgres", "file of a database service"]
"""The kinds of services that an import is tested with."""


class Vendor:
    """One of ADK's own services, and how an import from it is asked for."""

    def __init__(self, make: Callable[[], Any], *words: str) -> None:
        self._make, self.words = make, words

    @asynccontextmanager
    async def service(self) -> AsyncIterator[Any]:
        """Open the service."""
        made = self._make()
        yield made
        if isinstance(made, DatabaseSessionService):
            await made.close()


@contextmanager
def vendor_of(kind: str, settings: Settings, tmp_path: Path) -> Iterator[Vendor]:
    """Make a service of one of KINDS."""
    file = tmp_path / "ses sions?.db"
    if kind == "sqlite":
        yield Vendor(lambda: SqliteSessionService(str(file)), "adk-sqlite", str(file))
    elif kind == "postgres":
        with vendor_schema(settings) as url:
            driven = url.replace("postgresql://", "postgresql+psycopg://", 1)
            yield Vendor(lambda: DatabaseSessionService(driven), "adk-database", url)
    else:
        plain = f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}"
        yield Vendor(lambda: DatabaseSessionService(plain), "adk-database", plain)


def made_events(count: int, since: int = 0) -> list[Event]:
    """Return events of which some change states."""
    deltas: list[dict[str, Any]] = [{}, {"n": 1, "app:last": 1.5}, {"user:name": "ä 😀", "list": [None]}]
    return [
        event(f"event {number}", changes=deltas[number % 3], timestamp=1e9 + number + 0.125)
        for number in range(since, count)
    ]  # fmt: skip


async def append_to(service: BaseSessionService, which: dict[str, Any], events: list[Event]) -> None:
    """Append events to a session, which is created where it is not there."""
    session = await service.get_session(**which)
    if session is None:
        session = await service.create_session(**which, state={"begun": True, "app:of": which["app_name"]})
    for one in events:
        await service.append_event(session, one)


async def told_by(service: BaseSessionService) -> list[Any]:
    """Return all that a service tells of the sessions."""
    found = [await service.get_session(**one) for one in EVERY]
    return [session and session.model_dump() for session in found]


async def told_here(settings: Settings, namespace: str = "adk") -> list[Any]:
    """Return the same of what is here."""
    async with AsyncStateCache(settings=settings) as cache:
        return await told_by(StateCacheSessionService(cache, namespace=namespace))


async def filled(vendor: Vendor, count: int = 5) -> list[Any]:
    """Fill the sessions, and return what the service tells of them."""
    async with vendor.service() as service:
        for which in EVERY:
            await append_to(service, which, made_events(count))
        return await told_by(service)
