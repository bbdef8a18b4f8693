"""What every session service of ADK has to do, whatever it stands on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types

from statecache import Settings
from statecache_workers.worker import Worker
from tests.support.adk_services import ID, KINDS, WHOSE, MakeService, event, loaded, texts
from tests.support.openai_sessions import World
from tests.support.standing_on import Kind


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
async def make(
    request: pytest.FixtureRequest, settings: Settings, worker: Worker, redis_raw: Any
) -> AsyncIterator[MakeService]:
    """A maker of services, over everything that they may stand on."""
    kind: Kind = request.param
    async with kind(World(settings, worker, redis_raw)) as made:
        yield made


async def test_it_is_a_session_service_and_begins_empty(make: MakeService) -> None:
    service = make()
    assert isinstance(service, BaseSessionService)
    assert await service.get_session(**ID) is None
    assert (await service.list_sessions(app_name="orders")).sessions == []
    assert (await service.list_sessions(**WHOSE)).sessions == []
    assert await service.get_user_state(**WHOSE) == {}
    await service.delete_session(**ID)
    assert await service.ping()


async def test_a_session_that_was_created_is_read_as_it_is_until_it_is_deleted(make: MakeService) -> None:
    service = make()
    session = await service.create_session(**WHOSE, state={"key": "value", "temp:not": "kept"})
    assert (session.app_name, session.user_id, session.state) == ("orders", "alice", {"key": "value"})
    assert session.id
    assert session.last_update_time > 0
    assert await loaded(service, session_id=session.id) == session
    other = await service.create_session(**WHOSE)
    assert other.id != session.id
    await service.delete_session(**WHOSE, session_id=session.id)
    assert await service.get_session(**WHOSE, session_id=session.id) is None
    assert [one.id for one in (await service.list_sessions(**WHOSE)).sessions] == [other.id]


async def test_an_id_that_is_given_is_taken_without_what_surrounds_it_and_only_once(make: MakeService) -> None:
    service = make()
    assert (await service.create_session(**WHOSE, session_id=" 42\n")).id == "42"
    assert (await loaded(service, session_id=" 42 ")).id == "42"
    assert (await service.create_session(**WHOSE, session_id="  ")).id.strip()
    for state in (None, {"app:a": 2, "user:b": 2, "c": 2}):
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**ID, state=state)
    assert (await loaded(service)).state == {}
    await service.create_session(app_name="orders", user_id="bob", session_id="42")
    await service.create_session(app_name="others", user_id="alice", session_id="42")


async def test_a_session_that_is_created_again_has_nothing_of_the_one_before(make: MakeService) -> None:
    service = make()
    session = await service.create_session(**ID, state={"old": 1, "user:stays": 1})
    for number in range(70):
        await service.append_event(session, event(f"{number}"))
    await service.delete_session(**ID)
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, event("late"))
    again = await service.create_session(**ID)
    with pytest.raises(StaleSessionError):
        await service.append_event(session, event("late"))
    await service.append_event(again, event("new"))
    found = await loaded(service)
    assert (texts(found.events), found.state) == (["new"], {"user:stays": 1})


async def test_all_sessions_of_a_user_or_of_an_app_are_listed_those_updated_last_come_last(make: MakeService) -> None:
    service = make()
    times = iter(range(100, 0, -10))
    for user, number in (("alice", 1), ("alice", 2), ("bob", 3), ("bob:x", 4), ("a/b", 5)):
        whose = {"app_name": "orders", "user_id": user}
        session = await service.create_session(
            **whose, session_id=str(number), state={"n": number, f"user:{user}": number, f"app:{number}": 1}
        )
        await service.append_event(session, event("said", timestamp=float(next(times))))
    await service.create_session(app_name="orders:bob", user_id="x", session_id="6")
    await service.create_session(app_name="orde", user_id="alice", session_id="7")
    shared = {f"app:{number}": 1 for number in range(1, 6)}
    found = (await service.list_sessions(app_name="orders")).sessions
    assert [(one.id, one.user_id, one.last_update_time) for one in found] == [
        ("5", "a/b", 60), ("4", "bob:x", 70), ("3", "bob", 80), ("2", "alice", 90), ("1", "alice", 100),
    ]  # fmt: skip
    assert all(one.events == [] for one in found)
    assert found[1].state == {"n": 4, "user:bob:x": 4} | shared
    found = (await service.list_sessions(**WHOSE)).sessions
    assert [one.id for one in found] == ["2", "1"]
    assert found[0].state == {"n": 2, "user:alice": 2} | shared
    assert [one.id for one in (await service.list_sessions(app_name="orders", user_id="bob")).sessions] == ["3"]
    await service.append_event(await loaded(service, session_id="1"), event("again", timestamp=1.0))
    assert [one.id for one in (await service.list_sessions(**WHOSE)).sessions] == ["1", "2"]


async def test_state_is_shared_by_its_prefix(make: MakeService) -> None:
    service = make()
    first = await service.create_session(**ID, state={"app:a": 1, "user:u": 1, "s": 1})
    assert first.state == {"app:a": 1, "user:u": 1, "s": 1}
    changes = {"app:b": [2], "user:v": {"x": 2}, "t": 2, "temp:x": 2, "s": None}
    await service.append_event(first, event("hi", changes=changes))
    same_user = await service.create_session(**WHOSE, session_id="43")
    other_user = await service.create_session(app_name="orders", user_id="bob", session_id="42")
    other_app = await service.create_session(app_name="others", user_id="alice", session_id="42")
    assert same_user.state == {"app:a": 1, "app:b": [2], "user:u": 1, "user:v": {"x": 2}}
    assert other_user.state == {"app:a": 1, "app:b": [2]}
    assert other_app.state == {}
    assert (await loaded(service)).state == same_user.state | {"s": None, "t": 2}
    assert await service.get_user_state(**WHOSE) == {"u": 1, "v": {"x": 2}}
    assert await service.get_user_state(app_name="orders", user_id="bob") == {}
    assert await service.get_user_state(app_name="others", user_id="alice") == {}
    await service.append_event(same_user, event("hi", changes={"user:v": {"y": 3}, "app:a": 3}))
    assert await service.get_user_state(**WHOSE) == {"u": 1, "v": {"y": 3}}
    assert (await loaded(service)).state["app:a"] == 3
    await service.delete_session(**ID)
    assert await service.get_user_state(**WHOSE) == {"u": 1, "v": {"y": 3}}


async def test_what_is_temporary_is_in_the_session_object_alone(make: MakeService) -> None:
    service = make()
    session = await service.create_session(**ID)
    told = event("hi", changes={"temp:out": 1, "kept": 2})
    assert await service.append_event(session, told) is told
    assert session.state == {"temp:out": 1, "kept": 2}
    assert told.actions.state_delta == {"kept": 2}
    found = await loaded(service)
    assert (found.state, found.events[0].actions.state_delta) == ({"kept": 2}, {"kept": 2})


async def test_partial_events_are_not_kept(make: MakeService) -> None:
    service = make()
    session = await service.create_session(**ID)
    part = event("ha", partial=True, changes={"a": 1})
    assert await service.append_event(session, part) is part
    await service.append_event(session, event("half", partial=False))
    assert texts(session.events) == texts((await loaded(service)).events) == ["half"]
    assert (await loaded(service)).state == {}


async def test_an_event_comes_back_as_it_was(make: MakeService) -> None:
    service = make()
    session = await service.create_session(**ID)
    whole = Event(
        invocation_id="i", author="user", turn_complete=True, partial=False, error_code="e", error_message="m",
        actions=EventActions(artifact_delta={"file": 0}, transfer_to_agent="agent", escalate=True,
                             state_delta={"é\u2028\0": ["日本語 🌍", 2**63 + 1, 1.0, -0.0, 5e-324, None]}),
        content=types.Content(role="user", parts=[
            types.Part(text="cut \ud83d off"), types.Part.from_bytes(data=b"\0\xff" * 50, mime_type="image/png"),
            types.Part.from_function_call(name="f", args={"$json": "{}", "n": [[]]}),
        ]),
        long_running_tool_ids={"b", "a"}, interrupted=True, custom_metadata={"key": {"x": [1]}},
        grounding_metadata=types.GroundingMetadata(
            web_search_queries=["q"], search_entry_point=types.SearchEntryPoint(sdk_blob=b"blob")),
        usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=1, total_token_count=2),
        citation_metadata=types.CitationMetadata(), timestamp=1700000000.123,
        input_transcription=types.Transcription(text="t", finished=True), branch="a.b",
    )  # fmt: skip
    await service.append_event(session, whole)
    found = await loaded(service)
    assert found == session
    assert found.events == [whole]
    assert repr(found.state) == repr(session.state)


async def test_infinity_and_nan_are_none_in_an_event_and_kept_in_a_state(make: MakeService) -> None:
    service, inexact = make(), [math.inf, -math.inf, math.nan]
    session = await service.create_session(**ID)
    await service.append_event(session, event("one", changes={"scores": inexact}, custom_metadata={"scores": inexact}))
    found = await loaded(service)
    assert repr(found.state) == repr({"scores": inexact})
    (one,) = found.events
    assert (one.custom_metadata, one.actions.state_delta) == ({"scores": [None] * 3}, {"scores": [None] * 3})


async def test_events_are_limited_by_their_number_and_by_their_time(make: MakeService) -> None:
    service = make()
    session = await service.create_session(**ID)
    for number in range(1, 131):
        await service.append_event(session, event(f"{number}", timestamp=float(number)))
    assert session.last_update_time == (await loaded(service)).last_update_time == 130

    async def found(**config: Any) -> list[int]:
        one = await loaded(service, config=GetSessionConfig(**config))
        assert one.last_update_time == 130
        return [int(text) for text in texts(one.events)]

    assert await found() == [*range(1, 131)]
    assert await found(num_recent_events=0) == []
    for count in (1, 2, 3, 63, 64, 66, 130, 1000):
        assert await found(num_recent_events=count) == [*range(max(131 - count, 1), 131)]
    assert await found(after_timestamp=4.0) == [*range(4, 131)]
    assert await found(after_timestamp=131.0) == []
    assert await found(after_timestamp=128.5, num_recent_events=5) == [129, 130]
    assert await found(after_timestamp=1.0, num_recent_events=2) == [129, 130]
    recent = await loaded(service, config=GetSessionConfig(num_recent_events=0))
    await service.append_event(recent, event("131", timestamp=131.0))
    assert texts((await loaded(service)).events)[-2:] == ["130", "131"]


async def test_a_session_object_that_is_old_is_refused_and_changes_nothing(make: MakeService) -> None:
    service = make()
    old = await service.create_session(**ID)
    new = await loaded(service)
    await service.append_event(new, event("one", changes={"a": 1, "user:a": 1}))
    late = event("late", changes={"a": 2, "user:a": 2, "app:a": 2})
    with pytest.raises(StaleSessionError, match="modified in storage"):
        await service.append_event(old, late)
    found = await loaded(service)
    assert (texts(found.events), found.state) == (["one"], {"a": 1, "user:a": 1})
    assert (old.events, old.state) == ([], {})
    await service.append_event(found, late)
    assert (await loaded(service)).state == {"a": 2, "user:a": 2, "app:a": 2}


async def test_of_two_who_append_at_once_one_is_refused_and_nothing_is_lost(make: MakeService) -> None:
    service = make()
    await service.create_session(**ID)
    for turn in range(6):
        latest = await loaded(service)
        told = [
            service.append_event(
                latest.model_copy(deep=True),
                event(f"{turn}-{who}", changes={f"s{turn}{who}": 1, f"user:{turn}{who}": 1}),
            )
            for who in "ab"
        ]
        done = await asyncio.gather(*told, return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == ["Event", "StaleSessionError"]
    found = await loaded(service)
    assert [text[0] for text in texts(found.events)] == [*"012345"]
    names = {text.replace("-", "") for text in texts(found.events)}
    assert found.state == dict.fromkeys([f"s{name}" for name in names] + [f"user:{name}" for name in names], 1)


async def test_sessions_append_at_once_to_what_they_share(make: MakeService) -> None:
    service = make()
    sessions = [await service.create_session(**WHOSE, session_id=str(number)) for number in range(4)]

    async def append(number: int) -> None:
        for step in range(3):
            changes = {f"user:{number}-{step}": step, f"app:{number}": step}
            await service.append_event(sessions[number], event("hi", changes=changes))

    await asyncio.gather(*map(append, range(4)))
    assert await service.get_user_state(**WHOSE) == {f"{n}-{step}": step for n in range(4) for step in range(3)}
    found = (await loaded(service, session_id="0")).state
    assert {key: value for key, value in found.items() if key.startswith("app:")} == {f"app:{n}": 2 for n in range(4)}


async def test_an_object_without_a_revision_counts_by_its_last_event_or_its_time(make: MakeService) -> None:
    service = make()
    session = await service.create_session(**ID)
    await service.append_event(session, event("one"))
    for drift in (-0.001, 0.001):
        session._storage_update_marker = None
        session.last_update_time += drift
        await service.append_event(session, event("more"))
    old = session.model_copy(deep=True)
    await service.append_event(session, event("last"))
    assert old.last_update_time < session.last_update_time
    for at in (old.last_update_time, session.last_update_time + 1000):
        restored = Session.model_validate_json(old.model_copy(update={"last_update_time": at}).model_dump_json())
        with pytest.raises(StaleSessionError):
            await service.append_event(restored, event("late"))
    restored.events.clear()
    await service.append_event(Session.model_validate_json(session.model_dump_json()), event("whole"))
    await service.append_event(restored, event("by time"))
    assert texts((await loaded(service)).events) == ["one", "more", "more", "last", "whole", "by time"]


async def test_the_last_event_is_not_appended_twice(make: MakeService) -> None:
    service = make()
    session = await service.create_session(**ID)
    before, told = session.model_copy(deep=True), event("hi", changes={"user:n": 1, "m": 1})
    await service.append_event(session, told)
    await service.append_event(session, told)
    await service.append_event(before, told.model_copy(deep=True))
    found = await loaded(service)
    assert session == before == found
    assert texts(found.events) == ["hi"]
    await service.append_event(before, event("more", id=told.id))
    assert texts((await loaded(service)).events) == ["hi", "more"]


async def test_another_event_of_the_last_ones_id_is_appended_to_the_session_object_too(make: MakeService) -> None:
    service = make()
    session = await service.create_session(**ID)
    one, other = (event(text, id="1", changes={"n": text, "user:n": text}) for text in ("one", "other"))
    await service.append_event(session, one)
    before = session.model_copy(deep=True)
    for _ in range(2):
        await service.append_event(session, other)
        assert texts(session.events) == ["one", "other"]
        assert session == await loaded(service)
    await service.append_event(before, other.model_copy(deep=True))  # its answer was lost
    assert before == session
    other.actions.state_delta["n"] = "changed"
    await service.append_event(session, other)
    await service.append_event(session, event("last"))
    found = await loaded(service)
    assert (len(session.events), session.state) == (len(found.events), found.state)
    assert found.state == {"n": "changed", "user:n": "other"}


@pytest.mark.parametrize("size", [1, 20_000])
async def test_who_appends_an_event_again_has_it_once_though_others_went_on(make: MakeService, size: int) -> None:
    service = make()
    session = await service.create_session(**ID)
    told, lost = event("one", changes={"user:n": 1, "m": 1}), session.model_copy(deep=True)
    await service.append_event(session.model_copy(deep=True), told)
    for number in range(2, 12):
        another = await loaded(service)
        await service.append_event(another, event(f"{number}".ljust(size), changes={"user:n": number}))
    found = await loaded(service)
    await service.append_event(lost, told.model_copy(deep=True))
    assert [one.id for one in lost.events] == [told.id]
    assert await loaded(service) == found
    with pytest.raises(StaleSessionError):
        await service.append_event(lost, event("new"))
    last = event("last")
    await service.append_event(await loaded(service), last)
    await service.append_event(lost, last.model_copy(deep=True))
    with pytest.raises(StaleSessionError):  # it lacks what stands between
        await service.append_event(lost, event("new"))
    found = await loaded(service)
    again = found.model_copy(deep=True)
    await service.append_event(again, told.model_copy(deep=True))
    assert again == await loaded(service) == found
    await service.append_event(again, event("new"))
    assert len((await loaded(service)).events) == len(found.events) + 1


async def test_what_a_caller_changes_afterwards_changes_nothing(make: MakeService) -> None:
    service, given = make(), {"list": [1], "user:list": [1]}
    session = await service.create_session(**ID, state=given)
    given["list"].append(2)
    session.state["user:list"].append(2)
    for _ in range(2):
        found = await loaded(service)
        assert found.state == {"list": [1], "user:list": [1]}
        found.state["list"].append(3)


async def test_sessions_are_apart_whatever_their_names(make: MakeService) -> None:
    names = ["", "-", "/", ":", "a/b", "a:b", "a%3Ab", "a", "用户 1", "\ud83d", "{1}", "x" * 120, "x" * 600]
    service = make()
    ids = {name.strip() or "empty": name for name in names}
    whose = [(name, "a", "a") for name in names] + [("a", name, "b") for name in names]
    whose += [("a", "c", name) for name in ids]
    for app, user, session_id in whose:
        state = {"me": ascii((app, user, session_id))}
        session = await service.create_session(app_name=app, user_id=user, session_id=session_id, state=state)
        await service.append_event(session, event(state["me"]))
    for app, user, session_id in whose:
        found = await loaded(service, app_name=app, user_id=user, session_id=session_id)
        assert (found.app_name, found.user_id, found.id) == (app, user, session_id)
        assert [found.state["me"]] == texts(found.events) == [ascii((app, user, session_id))]
    listed = (await service.list_sessions(app_name="a", user_id="c")).sessions
    assert {one.id for one in listed} == {*ids}
    assert len((await service.list_sessions(app_name="a")).sessions) == 2 * len(names) + 1
    assert (await make(namespace="others").list_sessions(app_name="a")).sessions == []
