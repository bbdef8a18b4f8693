"""An agent of ADK whose process is killed in the middle of a run: another one goes on from what is whole."""

from __future__ import annotations

from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.adapters.adk import StateCacheSessionService
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.adk_agent import answered, said
from tests.support.adk_services import ID, WHOSE, loaded, texts
from tests.support.agent_processes import begun, killed_at
from tests.support.openai_sessions import World

AGENT = "tests.support.adk_agent"
FIRST = ["abc", "look_up?", "cba", "1: cba"]


@pytest.mark.parametrize("emptied", [False, True], ids=["unflushed", "emptied"])
async def test_a_run_that_was_cut_off_leaves_the_runs_before_whole_and_the_next_goes_on(
    settings: Settings, worker: Worker, redis_raw: Any, emptied: bool
) -> None:
    killed_at(begun(settings, AGENT, "runs", "a/b", "abc", "stop"), "looking up stop")
    if emptied:
        assert await World(settings, worker, redis_raw).empty() >= 4
    async with AsyncStateCache(settings=settings) as cache:
        service = StateCacheSessionService(cache)
        kept = await loaded(service, session_id="a/b")
        assert said(kept.events) == [*FIRST, "stop", "look_up?"]
        assert kept.state == {"last": "abc", "app:last": "abc", "user:asked": 1}
        assert await answered(service, "a/b", "def") == "2: fed"
        after = await loaded(service, session_id="a/b")
        assert said(after.events)[6:] == ["def", "look_up?", "fed", "2: fed"]
        assert after.state == {"last": "def", "app:last": "def", "user:asked": 2}
        assert await answered(service, "other", "ghi") == "1: ihg"
        assert await service.get_user_state(**WHOSE) == {"asked": 3}


async def test_processes_that_append_at_once_lose_nothing_and_one_that_is_killed_nothing_that_it_told(
    settings: Settings, worker: Worker, psql: Any
) -> None:
    async with AsyncStateCache(settings=settings) as cache:
        service = StateCacheSessionService(cache)
        await service.create_session(**ID)
        running = {name: begun(settings, AGENT, "appends", "42", name, "12") for name in "xyz"}
        killed_at(running.pop("z"), "5")
        for process in running.values():
            told, _ = process.communicate(timeout=60)
            assert (process.returncode, told.split()) == (0, [str(number) for number in range(12)])
        found = await loaded(service)
        shared = await service.get_user_state(**WHOSE)
    for name in "xyz":
        numbers = [int(text.split()[1]) for text in texts(found.events) if text.startswith(name)]
        assert numbers == [*range(len(numbers))]
        assert len(numbers) == 12 or (name == "z" and len(numbers) in range(6, 13))
        assert {found.state[key] for key in (name, f"user:{name}", f"app:{name}")} == {shared[name]} == {numbers[-1]}
    await flush(worker)
    assert psql.execute("SELECT count(*) FROM conflict").fetchall() == [(0,)]
