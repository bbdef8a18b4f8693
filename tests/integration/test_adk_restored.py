"""What a user and an app share stays as undo, redo or rollback brought it back; what is in doubt is still decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from statecache import AsyncStateCache, Change, PostgresUnavailable, Settings, State
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.adk import undecided as undeciding
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.adk_services import ID, WHOSE, event, loaded
from tests.support.cut_short import Killed, killing, stopping

APP, USER = "adk/orders", "adk/orders:alice"
BOTH = [APP, USER]
COMMIT = 2
"""An event that changes what one before it did resolves that, prepares its own, commits, and resolves it."""


@pytest.fixture(autouse=True)
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """A worker that flushes beside the test."""
    undeciding._known.clear()
    async with flushing(worker):
        yield


@pytest.fixture
async def service(cache: AsyncStateCache) -> StateCacheSessionService:
    """The service of a process."""
    return StateCacheSessionService(cache)


@pytest.fixture
async def other(settings: Settings) -> AsyncIterator[StateCacheSessionService]:
    """The service of another process."""
    async with AsyncStateCache(settings=settings) as cache:
        yield StateCacheSessionService(cache)


def plan(key: str, text: str) -> dict[str, Any]:
    """Return the change of the plan that a user or an app has."""
    return {f"{'app' if key == APP else 'user'}:plan": text}


async def seen(service: StateCacheSessionService, key: str) -> Any:
    """Return the plan as each verb tells it, which is the same."""
    (listed,) = (await service.list_sessions(**WHOSE)).sessions
    told = {one.state.get(next(iter(plan(key, "")))) for one in (listed, await loaded(service))}
    if key == USER:
        told.add((await service.get_user_state(**WHOSE)).get("plan"))
    (one,) = told
    return one


async def current(cache: AsyncStateCache, key: str) -> State[Any]:
    """Return what is shared, as it is kept."""
    state = await cache.get(key, read="primary")
    assert state is not None
    return state


async def versions(cache: AsyncStateCache, key: str) -> list[Change[Any]]:
    """Return the changes of what is shared, with what is in it."""
    return [one async for one in cache.history(key, values=True)]


async def bought(service: StateCacheSessionService, key: str) -> None:
    """Have a session whose second event made a plan gold that its creation had made basic."""
    session = await service.create_session(**ID, state=plan(key, "basic"))
    await service.append_event(session, event("upgrade", changes=plan(key, "gold")))


async def _cut_off(
    service: StateCacheSessionService, session: Any, appended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Append an event whose process dies as soon as it is committed, before what it changes elsewhere is resolved."""
    with monkeypatch.context() as patched:
        killing(patched, COMMIT, after=True)
        with pytest.raises(Killed):
            await service.append_event(session, appended)


@pytest.mark.parametrize("key", BOTH)
async def test_what_was_undone_stays_undone_and_can_be_undone_further_and_redone(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache, key: str
) -> None:
    await bought(service, key)
    for step, there in (("undo", "basic"), ("undo", "basic"), ("undo", None), ("redo", "basic"), ("redo", "basic"),
                        ("redo", "gold"), ("undo", "basic")):  # fmt: skip
        state: Any = await getattr(cache, step)(key)
        assert state.value["state"].get("plan") == there
        for one in (service, other, service):
            assert await seen(one, key) == there
        assert (await current(cache, key)).version == state.version
    await other.append_event(await loaded(other), event("none of it"))
    assert await seen(service, key) == "basic"
    await other.append_event(await loaded(other), event("later", changes=plan(key, "silver")))
    assert await seen(service, key) == "silver"
    assert (await current(cache, key)).value["prepared"] == {}
    await cache.undo(key)
    assert await seen(other, key) == "basic"


@pytest.mark.parametrize("by", ["version", "moment", "position"])
@pytest.mark.parametrize("key", BOTH)
async def test_what_it_was_rolled_back_to_stays_for_each_version(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache, key: str, by: str
) -> None:
    await bought(service, key)
    told = await versions(cache, key)
    assert [(one.reason, one.value["state"].get("plan"), len(one.value["prepared"])) for one in told if one.value] == [
        ("prepare", None, 1), ("resolve", "basic", 0), ("prepare", "basic", 1), ("resolve", "gold", 0),
    ]  # fmt: skip
    for one in [*reversed(told[:-1]), *told[1:], told[2]]:
        assert one.value is not None
        point: dict[str, Any] = {"at": one.at} if by == "moment" else {}
        await cache.rollback(
            key, *[] if by == "moment" else [one.version if by == "version" else one.position], **point
        )
        for reader in (other, service):
            assert await seen(reader, key) == one.value["state"].get("plan")


async def test_what_a_service_passes_over_goes_with_what_it_writes_next(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache
) -> None:
    """By an event that changes the same, and by the resolve of another session's."""
    await bought(service, USER)
    another = await service.create_session(**WHOSE, session_id="43")
    await cache.undo(USER)
    await service.append_event(another, event("x", changes={"user:n": 1}))
    assert [[*one.value["prepared"]] for one in await versions(cache, USER) if one.value][-1] == []
    assert await other.get_user_state(**WHOSE) == {"plan": "basic", "n": 1}


@pytest.mark.parametrize("edits", [0, 1, 3])
@pytest.mark.parametrize("key", BOTH)
async def test_what_a_crash_left_in_doubt_takes_effect_though_the_state_was_edited_meanwhile(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch, key: str, edits: int,
) -> None:  # fmt: skip
    session = await service.create_session(**ID, state=plan(key, "basic"))
    await _cut_off(service, session, event("upgrade", changes=plan(key, "gold")), monkeypatch)
    for number in range(edits):

        def edited(data: Any, added: int = number) -> Any:
            return data | {"state": data["state"] | {f"{added}": added}}

        await cache.update(key, edited)
    assert await seen(other, key) == "gold"
    assert (await current(cache, key)).value["state"] == {"plan": "gold"} | {
        f"{number}": number for number in range(edits)
    }


async def test_what_is_in_doubt_outlasts_an_undo_of_what_came_after_it(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nobody has resolved it since it was prepared; others of the same user were, before and after it."""
    await bought(service, USER)
    session, another = await loaded(service), await other.create_session(**WHOSE, session_id="43")
    await _cut_off(service, session, event("upgrade", changes={"user:n": 1}), monkeypatch)
    there = await current(cache, USER)
    await cache.update(USER, lambda data: data | {"state": {"edited": True}})
    await cache.undo(USER)
    with monkeypatch.context() as patched:
        killing(patched, 1, after=False)
        with pytest.raises(Killed):
            await other.append_event(another, event("x", changes={"user:m": 2}))
    await cache.undo(USER)
    assert (await current(cache, USER)).value == there.value
    await cache.redo(USER)
    assert await other.get_user_state(**WHOSE) == {"plan": "gold", "n": 1}


async def test_what_waits_for_its_session_outlasts_that_another_one_was_resolved_and_undone(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    session, another = await service.create_session(**ID), await other.create_session(**WHOSE, session_id="43")
    with monkeypatch.context() as patched:
        stopped, go_on = stopping(patched, 1, after=False)
        appending = asyncio.create_task(service.append_event(session, event("one", changes={"user:n": 1})))
        await stopped.wait()
    await other.append_event(another, event("two", changes={"user:m": 2}))
    assert [(one.reason, len(one.value["prepared"])) for one in await versions(cache, USER) if one.value] == [
        ("prepare", 1), ("prepare", 2), ("resolve", 1),
    ]  # fmt: skip
    await cache.undo(USER)
    assert len((await current(cache, USER)).value["prepared"]) == 2
    assert await other.get_user_state(**WHOSE) == {}
    go_on.set()
    await appending
    assert await other.get_user_state(**WHOSE) == {"n": 1}


async def test_what_was_undone_before_it_was_resolved_is_decided_once_it_is_redone(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    session = await service.create_session(**ID, state=plan(USER, "basic"))
    await _cut_off(service, session, event("upgrade", changes=plan(USER, "gold")), monkeypatch)
    await cache.undo(USER)
    assert await other.get_user_state(**WHOSE) == {"plan": "basic"}
    await cache.redo(USER)
    assert await other.get_user_state(**WHOSE) == {"plan": "gold"}


@pytest.mark.parametrize("key", BOTH)
async def test_a_state_that_was_deleted_begins_anew_and_comes_back_as_it_was(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch, key: str,
) -> None:  # fmt: skip
    await bought(service, key)
    await cache.delete(key)
    session = await loaded(service)
    await _cut_off(service, session, event("again", changes=plan(key, "silver")), monkeypatch)
    state = await current(cache, key)
    assert [one["over"] for one in state.value["prepared"].values()] == [state.parent_change_id]
    assert await seen(other, key) == "silver"
    await cache.rollback(key, 3)
    assert await seen(other, key) == "basic"
    await cache.rollback(key, 1)
    assert await seen(other, key) is None


async def test_a_branch_of_what_a_user_shares_has_no_change_of_its_origin_take_effect(
    service: StateCacheSessionService, cache: AsyncStateCache
) -> None:
    await bought(service, USER)
    for version, there in ((1, {}), (3, {"plan": "basic"}), (4, {"plan": "gold"})):
        await cache.branch(USER, f"adk/orders:bob{version}", at=version)
        assert await service.get_user_state(app_name="orders", user_id=f"bob{version}") == there
    group = service.group_of(**ID)
    await cache.branch(group, service.group_of(**WHOSE, session_id="43"), group=True)
    await cache.undo(USER)
    branched = await loaded(service, session_id="43")
    await service.append_event(branched, event("apart"))
    assert (await loaded(service, session_id="43")).state == {"user:plan": "basic"}


async def test_what_an_earlier_release_prepared_takes_effect_and_it_reads_what_this_one_does(
    service: StateCacheSessionService, other: StateCacheSessionService, cache: AsyncStateCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    session = await service.create_session(**ID, state=plan(USER, "basic"))
    await _cut_off(service, session, event("upgrade", changes=plan(USER, "gold")), monkeypatch)

    def earlier(data: Any) -> Any:
        (revision, one), *none = data["prepared"].items()
        assert not none
        assert {*one} == {"session", "before", "at", "state", "over"}
        return data | {"prepared": {revision: {name: part for name, part in one.items() if name != "over"}}}

    await cache.update(USER, earlier)
    await cache.set(USER, (await current(cache, USER)).value)
    assert await other.get_user_state(**WHOSE) == {"plan": "gold"}


@pytest.mark.parametrize("key", BOTH)
async def test_the_history_is_asked_once_and_where_it_cannot_be_nothing_takes_effect(
    service: StateCacheSessionService, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    await bought(service, key)
    await cache.undo(key)
    asked, look = 0, undeciding._looked_up

    async def counting(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked <= 2:
            raise PostgresUnavailable("away")
        return await look(*arguments)

    monkeypatch.setattr(undeciding, "_looked_up", counting)
    await loaded(service)
    session = await loaded(service)
    assert session.state == plan(key, "basic")
    assert asked == 2
    for _ in range(3):
        assert await seen(service, key) == "basic"
    assert asked == 3
