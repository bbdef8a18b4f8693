"""What sessions of ADK on statecache may hold: how much, what, and under which names."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.sessions.session import Session

from statecache import (
    AsyncStateCache,
    CodecError,
    LimitExceeded,
    StateCache,
    UsageError,
)
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.filling import PAGE_BYTES_MAX
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.fixtures.servers import MakeSettings
from tests.support.adk_services import CHANGES, GROUP, ID, WHOSE, event, loaded, names, texts

MIB = 1024 * 1024


@pytest.fixture
async def service(cache: AsyncStateCache) -> StateCacheSessionService:
    """A service on an asynchronous client."""
    return StateCacheSessionService(cache)


@pytest.fixture
async def session(service: StateCacheSessionService) -> Session:
    """A session of it."""
    return await service.create_session(**ID)


async def test_pages_are_bounded_in_bytes(
    service: StateCacheSessionService, session: Session, cache: AsyncStateCache
) -> None:
    sizes = [6000, 6000, 6000, 40_000, 10, 10, 3 * MIB]
    for size in sizes:
        await service.append_event(session, event("x" * size))
    found = [page.value["items"] async for page in cache.list(f"{GROUP}/events/")]
    assert [len(page) for page in found] == [2, 1, 1, 2, 1]
    assert all(sum(len(str(item)) for item in page) < PAGE_BYTES_MAX for page in found if len(page) > 1)
    assert [len(text) for text in texts((await loaded(service)).events)] == sizes


async def test_what_is_too_large_is_refused_as_a_whole(
    service: StateCacheSessionService, session: Session, cache: AsyncStateCache
) -> None:
    large = "x" * (8 * MIB)
    for refused in (event(large, changes=CHANGES), event("state", changes={**CHANGES, "n": large}),
                    event("user", changes={**CHANGES, "user:n": large})):  # fmt: skip
        with pytest.raises(LimitExceeded):
            await service.append_event(session, refused)
        assert (session.events, session.state) == ([], {})
        assert (await loaded(service)).state == {}
    with pytest.raises(LimitExceeded):
        await service.create_session(**WHOSE, state={"app:n": large})
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**ID, state=CHANGES)
    for key in ("adk/orders", "adk/orders:alice"):
        assert (await cache.get(key, default=dict)).value["prepared"] == {}
    await service.append_event(session, event("x" * int(7.9 * MIB), changes=CHANGES))
    assert [len(text) for text in texts((await loaded(service)).events)] == [int(7.9 * MIB)]
    assert (await loaded(service)).state == CHANGES


async def test_what_is_no_json_in_the_state_is_kept_as_adk_keeps_it_and_elsewhere_refused(
    service: StateCacheSessionService, session: Session
) -> None:
    when = event("one", changes={"set": {1}, "bytes": b"x", "user:call": len, "nan": float("nan"), "half": "\ud83d"})
    await service.append_event(session, when)
    state = (await loaded(service)).state
    assert (state["set"], state["bytes"], state["half"]) == ([1], "x", "\ud83d")
    assert state["nan"] != state["nan"]
    assert "len" in state["user:call"]
    with pytest.raises(CodecError, match="event"):
        await service.append_event(session, event("two", custom_metadata={"a": object()}, changes={"user:a": 1}))
    for strange in ({"\ud83d": 1, "user:a": 1}, {"user:a": [{"\ud83d": len}]}):
        with pytest.raises(CodecError, match="JSON"):
            await service.append_event(session, event("two", changes=strange))
        with pytest.raises(CodecError, match="JSON"):
            await service.create_session(**WHOSE, state=strange)
    assert await service.get_user_state(**WHOSE) == {"call": state["user:call"]}
    assert len((await service.list_sessions(**WHOSE)).sessions) == 1


async def test_sessions_are_listed_whatever_their_values_hold(
    service: StateCacheSessionService, worker: Worker, cache: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    await service.create_session(**WHOSE, session_id="new", state={"nul": "a\0b", "\0": 1})
    for name in ("\ud83d", "nul"):
        one = await service.create_session(**WHOSE, session_id=name, state={"nul": "a\0b", "\0": 1})
        await service.append_event(one, event("a\0b"))
    await flush(worker)
    redis_raw.unlink(*redis_raw.scan_iter(keys.every_state()))
    found = (await service.list_sessions(app_name="orders")).sessions
    assert {one.id for one in found} == {"\ud83d", "nul", "new"}
    assert all(one.state == {"nul": "a\0b", "\0": 1} for one in found)


async def test_a_session_of_more_pages_than_one_commit_takes_is_deleted(
    service: StateCacheSessionService, session: Session, cache: AsyncStateCache, worker: Worker,
    psql: psycopg.Connection[Any],
) -> None:  # fmt: skip
    for _ in range(270):
        await service.append_event(session, event("x" * PAGE_BYTES_MAX))
    assert len(await names(cache)) == 271
    assert len((await loaded(service)).events) == 270
    await service.delete_session(**ID)
    assert await names(cache) == []
    again = await service.create_session(**ID)
    await service.append_event(again, event("new"))
    assert texts((await loaded(service)).events) == ["new"]
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_pages_fit_into_the_values_that_settings_allow(make_settings: MakeSettings) -> None:
    async with AsyncStateCache(settings=make_settings(value_bytes_max=2048)) as cache:
        service = StateCacheSessionService(cache)
        session = await service.create_session(**ID)
        for number in range(20):
            await service.append_event(session, event(f"{number}"))
        with pytest.raises(LimitExceeded, match="value"):
            await service.append_event(session, event("x" * 2048))
        assert texts((await loaded(service)).events) == [f"{number}" for number in range(20)]


async def test_what_cannot_be_a_name_or_a_client_is_refused(service: StateCacheSessionService) -> None:
    for which in ("app_name", "user_id", "session_id"):
        with pytest.raises(UsageError, match=f"{which}.*NUL"):
            await service.create_session(**{**ID, which: "a\0b"})
        with pytest.raises(UsageError, match="NUL"):
            await service.get_session(**{**ID, which: "a\0b"})
    with pytest.raises(UsageError, match="more than one segment"):
        StateCacheSessionService(namespace="a/b")
    with pytest.raises(UsageError, match="an AsyncStateCache or on Settings, not on a StateCache"):
        StateCacheSessionService(StateCache.__new__(StateCache))  # type: ignore[arg-type]
