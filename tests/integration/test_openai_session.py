"""What every session of the OpenAI Agents SDK has to do, whatever it stands on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import RunConfig, Runner
from agents.memory import Session, SessionSettings, SQLiteSession

from statecache import Settings
from statecache_workers.worker import Worker
from tests.support.openai_sessions import KINDS, Kind, MakeSession, World, items
from tests.support.scripted_model import ScriptedModel, agent, said

SILENT = RunConfig(tracing_disabled=True)
HARD: list[Any] = [
    {"role": "user", "content": "日本語 🌍 café \u2028 \0 \x7f"},
    {"role": "user", "content": "cut \ud83d off"},
    {"role": "user", "content": "Robert'); DROP TABLE state;-- \\n \\\" {7} %s"},
    {"role": "assistant", "content": '{"nested": "json"}'},
    {"n": [0, -1, 2**53 + 1, 2**63, 2**64 + 1, 1.0, -0.0, 1e300, 5e-324, None, True, [], {}, [[{"a": [None]}]]]},
    {"": "", "$json": "{}", "$json2": 1},
    {"$json": "no json"},
    {"content": [{"type": "input_image", "image_url": "data:image/png;base64," + "A" * 50_000}]},
    {"at": "2026-01-01T10:00:00", "day": "2026-01-01 10:00"},
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
async def make(
    request: pytest.FixtureRequest, settings: Settings, worker: Worker, redis_raw: Any
) -> AsyncIterator[MakeSession]:
    """A maker of sessions, over everything that they may stand on."""
    kind: Kind = request.param
    async with kind(World(settings, worker, redis_raw)) as made:
        yield made


async def test_it_is_a_session_and_begins_empty(make: MakeSession) -> None:
    session = make("42")
    assert isinstance(session, Session)
    assert (session.session_id, session.session_settings) == ("42", SessionSettings())
    assert await session.get_items() == []
    assert await session.get_items(5) == []
    assert await session.pop_item() is None
    await session.clear_session()
    await session.add_items([])
    assert await session.get_items() == []
    assert await session.ping()


async def test_items_come_in_order_and_no_more_of_them_than_asked_for(make: MakeSession) -> None:
    session, all_items = make("42"), items(150)
    for begin in range(0, 150, 30):
        await session.add_items(all_items[begin : begin + 29])
        await session.add_items(all_items[begin + 29 : begin + 30])
    assert await session.get_items() == all_items
    for limit in (1, 2, 22, 23, 64, 65, 129, 149, 150, 151, 10_000):
        assert await session.get_items(limit) == all_items[-limit:]
    theirs = SQLiteSession("42")
    await theirs.add_items(all_items)
    for given in (None, 0, -1, -150):
        assert await session.get_items(given) == await theirs.get_items(given)


async def test_the_limit_of_the_settings_counts_unless_another_is_given(make: MakeSession) -> None:
    await make("42").add_items(items(10))
    session = make("42", session_settings={"limit": 3})
    assert session.session_settings == SessionSettings(limit=3)
    assert await session.get_items() == items(10)[-3:]
    assert await session.get_items(5) == items(10)[-5:]
    assert await make("42", session_settings=SessionSettings(limit=0)).get_items() == []
    with pytest.raises((TypeError, ValueError)):
        make("42", session_settings={"limits": 3})


async def test_what_is_popped_is_the_latest_down_to_nothing(make: MakeSession) -> None:
    session, left = make("42"), items(70)
    await session.add_items(left)
    while left:
        assert await session.pop_item() == left.pop()
        if len(left) in (64, 63, 30, 1):
            assert await session.get_items() == left
            assert await session.get_items(2) == left[-2:]
    assert await session.pop_item() is None
    await session.add_items(items(2))
    assert await session.get_items() == items(2)


async def test_a_page_that_was_emptied_and_begun_again_holds_what_is_new(make: MakeSession) -> None:
    session = make("42")
    await session.add_items(items(65))
    for number in range(3):
        assert await session.pop_item() is not None
        assert await session.pop_item() is not None
        await session.add_items(items(67 + number, since=65 + number))
        assert await session.get_items(2) == items(67 + number, since=65 + number)
    assert len(await session.get_items()) == 65


async def test_a_session_that_was_cleared_begins_anew(make: MakeSession) -> None:
    session, other = make("42"), make("43")
    await other.add_items(items(3))
    for count in (1, 200, 5):
        await session.add_items(items(count))
        await session.clear_session()
        assert await session.get_items() == await session.get_items(3) == []
        assert await session.pop_item() is None
        await session.add_items(items(count + 1, since=count))
        assert await session.get_items() == items(count + 1, since=count)
        await session.clear_session()
    assert await other.get_items() == items(3)


async def test_items_come_back_exactly_as_they_were(make: MakeSession) -> None:
    session = make("42")
    for item in HARD:
        await session.add_items([item])
    await session.add_items(HARD)
    found = await session.get_items()
    assert repr(found) == repr([*HARD, *HARD])
    assert repr(await session.pop_item()) == repr(HARD[-1])


async def test_what_a_caller_changes_afterwards_changes_nothing(make: MakeSession) -> None:
    session, given = make("42"), [{"role": "user", "content": [1]}]
    await session.add_items(given)  # type: ignore[arg-type]
    given[0]["content"].append(2)  # type: ignore[attr-defined]
    for _ in range(2):
        found: Any = await session.get_items()
        assert found == [{"role": "user", "content": [1]}]
        found[0]["content"].append(3)
        found.clear()


async def test_sessions_are_apart_whatever_their_ids(make: MakeSession) -> None:
    ids = ["", "-", "/", "a/b", "a", "a/b/items/000001", "a%2Fb", "用户 1", "\ud83d", "{1}", "x" * 120, "x" * 600]
    for session_id in ids:
        item: Any = {"content": ascii(session_id)}
        await make(session_id).add_items([item])
    for session_id in ids:
        assert await make(session_id).get_items() == [{"content": ascii(session_id)}]
    await make("a").clear_session()
    assert await make("a").get_items() == []
    assert await make("a/b").get_items() == [{"content": "'a/b'"}]
    assert await make("a", namespace="others").get_items() == []


async def test_adds_of_many_tasks_are_all_there_each_in_one_piece(make: MakeSession) -> None:
    sessions = [make("42") for _ in range(3)]

    async def add(number: int) -> None:
        for step in range(3):
            await sessions[number % 3].add_items([{"by": number, "step": step, "part": part} for part in "ab"])  # type: ignore[misc]

    await asyncio.gather(*map(add, range(12)))
    found: list[Any] = await sessions[0].get_items()
    assert len(found) == 72
    assert all(one | {"part": "b"} == two for one, two in zip(found[::2], found[1::2], strict=True))
    for number in range(12):
        assert [item["step"] for item in found[::2] if item["by"] == number] == [0, 1, 2]


async def test_pops_of_many_tasks_give_each_item_once(make: MakeSession) -> None:
    sessions = [make("42") for _ in range(3)]
    await sessions[0].add_items(items(20))
    popped = await asyncio.gather(*(sessions[at % 3].pop_item() for at in range(25)))
    got = [item for item in popped if item is not None]
    assert sorted(map(repr, got)) == sorted(map(repr, items(20)))
    assert await sessions[0].get_items() == []


async def test_an_agent_goes_on_where_it_was(make: MakeSession) -> None:
    session, model = make("42"), ScriptedModel()
    first = await Runner.run(agent(model), "abc", session=session, run_config=SILENT)
    assert first.final_output == "It is cba."
    streamed = Runner.run_streamed(agent(model), "def", session=session, run_config=SILENT)
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output == "It is fed."
    told = [
        "user: abc", "function_call: look_up", "function_call_output: cba", "assistant: It is cba.",
        "user: def", "function_call: look_up", "function_call_output: fed", "assistant: It is fed.",
    ]  # fmt: skip
    assert said(await session.get_items()) == told
    assert said(model.inputs[2]) == told[:5]
    limited = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=1))
    await Runner.run(agent(model), "ghi", session=session, run_config=limited)
    assert said(model.inputs[4]) == ["assistant: It is fed.", "user: ghi"]
    assert len(await session.get_items()) == 12
