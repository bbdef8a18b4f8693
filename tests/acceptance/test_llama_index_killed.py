"""Processes that add to a chat of LlamaIndex at once, one of which is killed: nothing that any of them told is lost."""

from __future__ import annotations

from typing import Any

from statecache import AsyncStateCache, Settings
from statecache.adapters.llama_index import StateCacheChatStore
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.agent_processes import begun, killed_at

AGENT = "tests.support.llama_index_agent"


async def test_processes_that_add_at_once_lose_nothing_and_one_that_is_killed_nothing_that_it_told(
    settings: Settings, worker: Worker, psql: Any
) -> None:
    running = {name: begun(settings, AGENT, "a/b", name, "30") for name in "xyz"}
    killed_at(running.pop("z"), "10")
    for process in running.values():
        told, _ = process.communicate(timeout=60)
        assert (process.returncode, told.split()) == (0, [str(number) for number in range(30)])
    async with AsyncStateCache(settings=settings) as cache:
        found = [one.content or "" for one in await StateCacheChatStore(cache).aget_messages("a/b")]
    for name in "xyz":
        numbers = [int(text.split()[1]) for text in found if text.startswith(name)]
        assert numbers == [*range(len(numbers))]
        assert len(numbers) == 30 or (name == "z" and len(numbers) in range(11, 31))
    await flush(worker)
    assert psql.execute("SELECT count(*) FROM conflict").fetchall() == [(0,)]
