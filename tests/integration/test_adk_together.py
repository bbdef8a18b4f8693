"""An event and what it changes in session, user and app are one, wherever its process ends or is stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.platform import time as platform_time
from google.genai.types import Content, Part

from statecache import AsyncStateCache, Settings
from statecache.adapters.adk import StateCacheSessionService, shared
from statecache.adapters.adk.shared import IN_DOUBT_S_MAX
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.support.adk_agent import runner
from tests.support.adk_services import ID, WHOSE, event, loaded, texts
from tests.support.cut_short import Killed, killing, stopping

WRITES = 5
"""An event that changes the states of its app and its user prepares two, commits, and resolves two."""
COMMIT = 2
CHANGES: dict[str, Any] = {"app:n": 1, "user:n": 1, "n": 1}
EVERYWHERE = [(number, after) for number in range(WRITES) for after in (False, True)]


@pytest.fixture
async def service(cache: AsyncStateCache) -> StateCacheSessionService:
    """A service whose writes may be cut short."""
    return StateCacheSessionService(cache)


@pytest.fixture
async def other(settings: Settings) -> AsyncIterator[StateCacheSessionService]:
    """The service of another process."""
    async with AsyncStateCache(settings=settings) as cache:
        yield StateCacheSessionService(cache)


async def in_doubt(cache: AsyncStateCache) -> int:
    """Return how many changes are prepared and not resolved."""
    states = [await cache.get(key, read="primary", default=dict) for key in ("adk/orders", "adk/orders:alice")]
    return sum(len(state.value.get("prepared", ())) for state in states)


async def seen(service: StateCacheSessionService) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the state as each verb tells it."""
    (listed,) = (await service.list_sessions(**WHOSE)).sessions
    return (await loaded(service)).state, listed.state, await service.get_user_state(**WHOSE)


@pytest.mark.parametrize(("number", "after"), EVERYWHERE)
async def test_an_event_whose_process_was_killed_counts_as_a_whole_or_not_at_all(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch, number: int, after: bool,
) -> None:  # fmt: skip
    session = await service.create_session(**ID)
    with monkeypatch.context() as patched:
        killing(patched, number, after=after)
        with pytest.raises(Killed):
            await service.append_event(session, event("one", changes=CHANGES))
    committed = (number, after) >= (COMMIT, True)
    there: dict[str, Any] = CHANGES if committed else {}
    assert await other.get_user_state(**WHOSE) == ({"n": 1} if committed else {})
    assert await seen(other) == (there, there, {"n": 1} if committed else {})
    assert texts((await loaded(other)).events) == ["one"] * committed
    assert not committed or await in_doubt(cache) == 0
    await other.append_event(await loaded(other), event("two", changes={"app:m": 2, "user:m": 2}))
    more = there | {"app:m": 2, "user:m": 2}
    assert await seen(other) == (more, more, {"m": 2} | ({"n": 1} if committed else {}))
    assert await in_doubt(cache) == 0
    assert (await loaded(service)).state == more


@pytest.mark.parametrize(("number", "after"), EVERYWHERE)
@pytest.mark.parametrize("first", [False, True], ids=["before-others", "after-others"])
async def test_who_appends_the_same_event_again_has_it_once(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch, number: int, after: bool, first: bool,
) -> None:  # fmt: skip
    session, told = await service.create_session(**ID), event("one", changes=CHANGES)
    with monkeypatch.context() as patched:
        killing(patched, number, after=after)
        with pytest.raises(Killed):
            await service.append_event(session, told)
    assert (session.events, session.state) == ([], {})
    if first:
        another = await other.create_session(**WHOSE, session_id="43")
        await other.append_event(another, event("x", changes={"user:n": 7}))
    await service.append_event(session, told)
    found = await loaded(other)
    assert texts(found.events) == texts(session.events) == ["one"]
    later = first and (number, after) >= (COMMIT, True)
    assert found.state == CHANGES | ({"user:n": 7} if later else {})
    assert await in_doubt(cache) == 0
    await service.append_event(session, event("two"))
    assert (await loaded(other)).state == found.state


@contextmanager
def a_day_later(seconds: float = 60) -> Iterator[None]:
    """Have it be some seconds more than it takes until what is in doubt is given up."""
    then = platform_time.get_time() + IN_DOUBT_S_MAX + seconds
    platform_time.set_time_provider(lambda: then)
    try:
        yield
    finally:
        platform_time.reset_time_provider()


@pytest.mark.parametrize(("number", "after"), EVERYWHERE)
async def test_a_session_whose_creator_was_killed_is_there_as_a_whole_or_not_at_all(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch, number: int, after: bool,
) -> None:  # fmt: skip
    with monkeypatch.context() as patched:
        killing(patched, number, after=after)
        with pytest.raises(Killed):
            await service.create_session(**ID, state=CHANGES)
    if (number, after) >= (COMMIT, True):
        assert await seen(other) == (CHANGES, CHANGES, {"n": 1})
    else:
        assert await other.get_session(**ID) is None
        assert await other.get_user_state(**WHOSE) == {}
        assert (await other.create_session(**ID, state={"user:n": 2})).state == {"user:n": 2}
        assert await other.get_user_state(**WHOSE) == {"n": 2}
    with a_day_later():
        found = await loaded(other)
    assert found.state["user:n"] == (1 if (number, after) >= (COMMIT, True) else 2)
    assert await in_doubt(cache) == 0


@pytest.mark.parametrize("number", [2, 3, 4])
async def test_a_session_is_deleted_or_gone_on_with_once_its_last_event_has_taken_effect(
    service: StateCacheSessionService, other: StateCacheSessionService, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for goes_on in (False, True):
        session = await service.create_session(**ID)
        old = session.model_copy(deep=True)
        with monkeypatch.context() as patched:
            killing(patched, number, after=number == COMMIT)
            with pytest.raises(Killed):
                await service.append_event(session, event("one", changes={**CHANGES, "user:n": int(goes_on)}))
        if goes_on:
            old._storage_update_marker, old.last_update_time = None, old.last_update_time + 1000
            await other.append_event(old, event("two"))
        else:
            await other.delete_session(**ID)
        assert await other.get_user_state(**WHOSE) == {"n": int(goes_on)}
    assert texts((await loaded(other)).events) == ["one", "two"]


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize(("number", "after"), [(2, True), (3, False), (3, True), (4, False), (4, True)])
async def test_who_was_stopped_behind_the_commit_writes_over_nothing_that_came_after_it(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch, number: int, after: bool, goes_on: bool, is_read: bool,
) -> None:  # fmt: skip
    """Whether anybody has read what it changed before that or not, and whether it ever goes on."""
    session = await service.create_session(**ID)
    another = await other.create_session(**WHOSE, session_id="43")
    with monkeypatch.context() as patched:
        stopped, go_on = stopping(patched, number, after=after)
        appending = asyncio.create_task(service.append_event(session, event("one", changes=CHANGES)))
        await stopped.wait()
    if is_read:
        assert (await loaded(other)).state == CHANGES
    await other.append_event(another, event("two", changes={"app:n": 2, "user:n": 2}))
    assert await seen_first(other) == {"app:n": 2, "user:n": 2, "n": 1}
    if not goes_on:
        appending.cancel()
    go_on.set()
    await asyncio.gather(appending, return_exceptions=True)
    assert await seen_first(other) == {"app:n": 2, "user:n": 2, "n": 1}
    if goes_on:
        await service.append_event(session, event("three"))
    assert await seen_first(other) == {"app:n": 2, "user:n": 2, "n": 1}
    assert await in_doubt(cache) == 0


async def seen_first(service: StateCacheSessionService) -> dict[str, Any]:
    """Return the state of the session."""
    return (await loaded(service)).state


@pytest.mark.parametrize(("number", "after"), [(0, True), (1, False), (1, True), (2, False)])
async def test_who_was_stopped_before_the_commit_while_others_went_on_changes_nothing(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch, number: int, after: bool,
) -> None:  # fmt: skip
    session = await service.create_session(**ID)
    with monkeypatch.context() as patched:
        stopped, go_on = stopping(patched, number, after=after)
        appending = asyncio.create_task(service.append_event(session, event("one", changes=CHANGES)))
        await stopped.wait()
    assert await other.get_user_state(**WHOSE) == {}
    await other.append_event(await loaded(other), event("two"))
    assert await other.get_user_state(**WHOSE) == {}
    go_on.set()
    with pytest.raises(StaleSessionError):
        await appending
    assert await in_doubt(cache) == 0
    assert await seen(other) == ({}, {}, {})
    assert texts((await loaded(other)).events) == ["two"]


@pytest.mark.parametrize("commits", [False, True])
async def test_what_was_prepared_first_and_appended_last_counts_last(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch, commits: bool,
) -> None:  # fmt: skip
    session = await service.create_session(**ID)
    another = await other.create_session(**WHOSE, session_id="43")
    with monkeypatch.context() as patched:
        stopped, go_on = stopping(patched, COMMIT, after=False)
        appending = asyncio.create_task(service.append_event(session, event("one", changes=CHANGES)))
        await stopped.wait()
    await other.append_event(another, event("two", changes={"app:n": 2, "user:n": 2}))
    assert await in_doubt(cache) == 2
    assert await other.get_user_state(**WHOSE) == {"n": 2}
    if not commits:
        await other.append_event(await loaded(other), event("three"))
    go_on.set()
    (ended,) = await asyncio.gather(appending, return_exceptions=True)
    assert isinstance(ended, StaleSessionError) is not commits
    assert await other.get_user_state(**WHOSE) == {"n": 1 if commits else 2}
    assert await in_doubt(cache) == 0


@pytest.mark.parametrize("deleted", [True, False])
async def test_what_was_prepared_for_a_session_outlasts_another_one_of_its_id(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch, deleted: bool,
) -> None:  # fmt: skip
    """Who looks at it while the other one is there cannot know that this will not be deleted in time."""
    with monkeypatch.context() as patched:
        stopped, go_on = stopping(patched, COMMIT, after=False)
        creating = asyncio.create_task(service.create_session(**ID, state=CHANGES))
        await stopped.wait()
    await other.create_session(**ID)
    assert (await loaded(other)).state == {}
    if deleted:
        await other.delete_session(**ID)
    go_on.set()
    if deleted:
        assert (await creating).state == CHANGES
    else:
        with pytest.raises(AlreadyExistsError):
            await creating
    assert await seen(other) == ((CHANGES, CHANGES, {"n": 1}) if deleted else ({}, {}, {}))
    assert await in_doubt(cache) == 0


@pytest.mark.parametrize("deleted", [True, False])
async def test_who_reads_a_session_while_it_goes_on_has_what_it_was_created_with(
    service: StateCacheSessionService, other: StateCacheSessionService, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """The reader has read the shared states before what was prepared took effect there, and the session after it."""
    with monkeypatch.context() as patched:
        killing(patched, COMMIT, after=True)
        with pytest.raises(Killed):
            await service.create_session(**ID, state=CHANGES)
    look = shared._verdicts

    async def later(*arguments: Any) -> Any:
        monkeypatch.undo()
        if deleted:
            await service.delete_session(**ID)
        else:
            await service.append_event(await loaded(service), event("two"))
        return await look(*arguments)

    monkeypatch.setattr(shared, "_verdicts", later)
    assert (await loaded(other)).state == CHANGES


async def test_what_is_in_doubt_waits_for_its_session_and_is_given_up_after_a_day(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with monkeypatch.context() as patched:
        stopped, go_on = stopping(patched, COMMIT, after=False)
        creating = asyncio.create_task(service.create_session(**ID, state=CHANGES))
        await stopped.wait()
    for _ in range(3):
        assert await other.get_user_state(**WHOSE) == {}
    assert await in_doubt(cache) == 2
    go_on.set()
    assert (await creating).state == CHANGES
    assert await in_doubt(cache) == 0
    with monkeypatch.context() as patched:
        killing(patched, 1, after=False)
        with pytest.raises(Killed):
            await service.create_session(**WHOSE, session_id="43", state={"user:n": 3})
    for seconds, left in ((-60, 1), (60, 0)):
        with a_day_later(seconds):
            assert await other.get_user_state(**WHOSE) == {"n": 1}
            assert await in_doubt(cache) == left


async def test_processes_that_change_what_they_share_lose_nothing(
    settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    caches = [AsyncStateCache(settings=settings) for _ in range(3)]

    async def work(at: int) -> None:
        service = StateCacheSessionService(caches[at])
        session = await service.create_session(**WHOSE, session_id=f"{at}")
        for step in range(8):
            changes = {f"user:{at}": step, f"app:{at}-{step}": step, "n": step}
            await service.append_event(session, event(f"{step}", changes=changes))
            assert (await loaded(service, session_id=f"{at}")).state[f"user:{at}"] == step

    await asyncio.gather(*map(work, range(3)))
    service = StateCacheSessionService(caches[0])
    assert await service.get_user_state(**WHOSE) == dict.fromkeys("012", 7)
    found = (await loaded(service, session_id="1")).state
    assert sum(key.startswith("app:") for key in found) == 24
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
    for cache in caches:
        await cache.close()


def test_event_loops_and_threads_share_a_service(settings: Settings) -> None:
    service = StateCacheSessionService.from_settings(settings)

    async def work(number: int) -> None:
        session = await service.create_session(**WHOSE, session_id=f"{number}")
        for step in range(3):
            await service.append_event(session, event(f"{step}", changes={f"user:{number}": step}))

    asyncio.run(work(0))
    threads = [threading.Thread(target=asyncio.run, args=[work(number)]) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asyncio.run(service.get_user_state(**WHOSE)) == dict.fromkeys("0123", 2)
    assert service._clients._made == {}
    assert len(service._clients._turns) == 0


def test_a_run_that_is_not_awaited_may_be_followed_by_another(settings: Settings) -> None:
    service, said = StateCacheSessionService.from_settings(settings), list[str]()
    for text in ("abc", "def"):
        message = Content(role="user", parts=[Part(text=text)])
        events = runner(service).run(user_id=WHOSE["user_id"], session_id="42", new_message=message)
        said.append(texts(events)[-1])
    assert said == ["1: cba", "2: fed"]
    assert service._clients._made == {}


async def test_sessions_do_not_wait_for_one_another_and_what_one_session_is_told_comes_in_turn(
    service: StateCacheSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, same = await service.create_session(**ID), await loaded(service)
    another = await service.create_session(**WHOSE, session_id="43")
    with monkeypatch.context() as patched:
        stopped, go_on = stopping(patched, 0, after=False)
        appending = asyncio.create_task(service.append_event(session, event("one")))
        await stopped.wait()
    waiting = asyncio.create_task(service.append_event(same, event("two")))
    async with asyncio.timeout(20):
        await service.append_event(another, event("other"))
    assert not waiting.done()
    go_on.set()
    await appending
    with pytest.raises(StaleSessionError):
        await waiting
