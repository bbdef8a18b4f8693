"""Two services of ADK append to a session while servers and worker are killed: each event counts once, and whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from google.adk.errors import StaleSessionError

from statecache import AsyncStateCache, OutcomeUnknown, Settings, Unavailable
from statecache.adapters.adk import StateCacheSessionService
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.support.adk_services import WHOSE, event, texts
from tests.support.killer import Killer

EVENTS, STRIKES = 60, 6


@pytest.fixture(scope="module")
def mortal() -> Iterator[Servers]:
    """Servers that may be killed, with a worker."""
    with servers(workers=1, fsync=False, settings={"shards": "4"}) as started:
        yield started


async def _append(service: StateCacheSessionService, which: dict[str, Any], text: str) -> None:
    """Append an event that adds to all that an event may change, as whoever is told that it is late goes on."""
    while True:
        session = await service.get_session(**which)
        assert session is not None
        said = texts(session.events)
        if text in said:
            return
        changes = {f"{of}n": session.state.get(f"{of}n", 0) + 1 for of in ("app:", "user:", "")}
        try:
            await service.append_event(session, event(text, changes=changes))
        except (StaleSessionError, OutcomeUnknown, Unavailable):
            continue


@pytest.mark.parametrize("names", [("redis",), ("worker", "postgres", "redis")], ids="-".join)
async def test_each_event_and_what_it_changes_count_once(mortal: Servers, names: tuple[str, ...]) -> None:
    urls: dict[str, Any] = {"redis_url": mortal.redis_url, "postgres_url": mortal.postgres_url, "shards": 4}
    settings, killer = Settings(**urls, timeout_s=20.0), Killer(mortal, *names)
    which = {**WHOSE, "app_name": "-".join(names), "session_id": "42"}
    async with StateCacheSessionService(settings) as one, StateCacheSessionService(settings) as other:
        await one.create_session(**which)
        for number in range(EVENTS):
            if number % (EVENTS // STRIKES) == 5:
                await asyncio.to_thread(killer, len(killer.struck))
            await _append((one, other)[number % 2], which, f"event {number}")
        await asyncio.to_thread(killer.wait)
        assert len(killer.struck) == STRIKES
        told = await one.get_session(**which)
        assert told is not None
        assert texts(told.events) == [f"event {number}" for number in range(EVENTS)]
        assert told.state == {f"{of}n": EVENTS for of in ("app:", "user:", "")}
    async with AsyncStateCache(settings=settings) as cache:  # another process, once Postgres holds all of it
        service = StateCacheSessionService(cache)
        for name in (service.group_of(**which), f"adk/{which['app_name']}", f"adk/{which['app_name']}:alice"):
            await cache.set(f"{name}/end", 1, durability="postgres")
        assert await service.get_session(**which) == told
    with psycopg.connect(mortal.postgres_url) as psql:
        assert psql.execute("SELECT count(*) FROM statecache.conflict").fetchone() == (0,)
