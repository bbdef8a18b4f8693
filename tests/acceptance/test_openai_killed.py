"""An agent whose process is killed in the middle of a turn: another one goes on, from a conversation that is whole."""

from __future__ import annotations

from typing import Any

import pytest
from agents import RunConfig, Runner

from statecache import AsyncStateCache, Settings
from statecache.adapters.openai_agents import StateCacheSession
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.agent_processes import begun, killed_at
from tests.support.openai_sessions import World
from tests.support.scripted_model import ScriptedModel, agent, said

AGENT = "tests.support.openai_agent"
FIRST = ["user: abc", "function_call: look_up", "function_call_output: cba", "assistant: It is cba."]


@pytest.mark.parametrize("emptied", [False, True], ids=["unflushed", "emptied"])
async def test_a_turn_that_was_cut_off_leaves_the_turns_before_whole_and_the_next_goes_on(
    settings: Settings, worker: Worker, redis_raw: Any, emptied: bool
) -> None:
    killed_at(begun(settings, AGENT, "turns", "a/b", "abc", "stop"), "looking up stop")
    if emptied:
        assert await World(settings, worker, redis_raw).empty() >= 2
    async with AsyncStateCache(settings=settings) as cache:
        session, model = StateCacheSession("a/b", cache), ScriptedModel()
        kept = said(await session.get_items())
        assert kept in ([*FIRST, "user: stop"], [*FIRST, "user: stop", "function_call: look_up"])
        while len(await session.get_items()) > len(FIRST):
            await session.pop_item()
        done = await Runner.run(agent(model), "def", session=session, run_config=RunConfig(tracing_disabled=True))
        assert done.final_output == "It is fed."
        assert said(model.inputs[0]) == [*FIRST, "user: def"]
        told = ["user: def", "function_call: look_up", "function_call_output: fed", "assistant: It is fed."]
        assert said(await session.get_items()) == [*FIRST, *told]


async def test_processes_that_add_at_once_lose_nothing_and_one_that_is_killed_nothing_that_it_told(
    settings: Settings, worker: Worker, psql: Any
) -> None:
    running = {name: begun(settings, AGENT, "adds", "42", name, "40") for name in "xyz"}
    killed_at(running.pop("z"), "15")
    for process in running.values():
        told, _ = process.communicate(timeout=60)
        assert (process.returncode, told.split()) == (0, [str(number) for number in range(40)])
    async with AsyncStateCache(settings=settings) as cache:
        found: list[Any] = await StateCacheSession("42", cache).get_items()
    for name in "xyz":
        numbers = [item["number"] for item in found if item["by"] == name and item["part"] == "a"]
        assert numbers == [*range(len(numbers))]
        assert len(numbers) == 40 or (name == "z" and len(numbers) in range(16, 41))
    assert all(one | {"part": "b"} == two for one, two in zip(found[::2], found[1::2], strict=True))
    await flush(worker)
    assert psql.execute("SELECT count(*) FROM conflict").fetchall() == [(0,)]
