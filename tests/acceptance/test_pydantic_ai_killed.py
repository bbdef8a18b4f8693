"""An agent of Pydantic AI whose process is killed in the middle of a run: another one goes on from what is whole."""

from __future__ import annotations

from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.adapters.pydantic_ai import StateCacheConversationStore
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.agent_processes import begun, killed_at
from tests.support.openai_sessions import World
from tests.support.pydantic_ai_agent import agent
from tests.support.pydantic_ai_stores import told

AGENT = "tests.support.pydantic_ai_agent"


@pytest.mark.parametrize("emptied", [False, True], ids=["unflushed", "emptied"])
async def test_a_run_that_was_cut_off_leaves_the_runs_before_whole_and_the_next_goes_on(
    settings: Settings, worker: Worker, redis_raw: Any, emptied: bool
) -> None:
    killed_at(begun(settings, AGENT, "runs", "a/b", "abc", "stop"), "looking up stop")
    if emptied:
        assert await World(settings, worker, redis_raw).empty() >= 2
    async with AsyncStateCache(settings=settings) as cache:
        store = StateCacheConversationStore(cache)
        conversation = await store.load("a/b")
        assert conversation is not None
        assert (len(conversation.messages), conversation.usage.requests) == (4, 2)
        result = await agent.run("def", conversation=conversation)
        await store.save(result)
        assert result.output == "2: fed"
        loaded = await store.load("a/b")
        assert loaded is not None
        assert (len(loaded.messages), loaded.usage.requests) == (8, 4)


async def test_processes_that_save_at_once_lose_nothing_and_one_that_is_killed_nothing_that_it_told(
    settings: Settings, worker: Worker, psql: Any
) -> None:
    running = {name: begun(settings, AGENT, "saves", "42", name, "25") for name in "xyz"}
    killed_at(running.pop("z"), "10")
    for process in running.values():
        said, _ = process.communicate(timeout=60)
        assert (process.returncode, said.split()) == (0, [str(number) for number in range(25)])
    async with AsyncStateCache(settings=settings) as cache:
        loaded = await StateCacheConversationStore(cache).load("42")
    assert loaded is not None
    found = told(loaded.messages)
    for name in "xyz":
        numbers = [int(text.split()[1]) for text in found[::2] if text.startswith(name)]
        assert numbers == [*range(len(numbers))]
        assert len(numbers) == 25 or (name == "z" and len(numbers) in range(11, 26))
    assert all(f"{asked}!" == answered for asked, answered in zip(found[::2], found[1::2], strict=True))
    await flush(worker)
    assert psql.execute("SELECT count(*) FROM conflict").fetchall() == [(0,)]
