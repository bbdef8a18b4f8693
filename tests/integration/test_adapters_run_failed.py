"""A run that ends by an error while others write: what they still write is written, and nothing buries the error."""

from __future__ import annotations

import asyncio
import gc
import logging
import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from llama_index.core.llms import ChatMessage

from statecache import Settings
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.langgraph import StateCacheSaver
from statecache.adapters.llama_index import StateCacheChatStore
from statecache.adapters.openai_agents import StateCacheSession
from tests.support.adk_services import ID, WHOSE
from tests.support.langgraph_stories import config
from tests.support.openai_sessions import items
from tests.support.polling import pause

AGENTS, NODES, RUNS = 4, "abcdefgh", 3


class _AgentsSdk:
    def __init__(self, settings: Settings) -> None:
        self.made = StateCacheSession.from_settings("42", settings)

    async def write(self, number: int) -> None:
        await self.made.add_items(items(number + 1, since=number))

    async def count(self) -> int:
        return len(await self.made.get_items())


class _Adk:
    def __init__(self, settings: Settings) -> None:
        self.made = StateCacheSessionService.from_settings(settings)

    async def write(self, number: int) -> None:
        await self.made.create_session(**{**ID, "session_id": f"{number}"})

    async def count(self) -> int:
        return len((await self.made.list_sessions(**WHOSE)).sessions)


class _LlamaIndex:
    def __init__(self, settings: Settings) -> None:
        self.made = StateCacheChatStore(settings)

    async def write(self, number: int) -> None:
        await self.made.async_add_message("chat", ChatMessage(content=f"{number}"))

    async def count(self) -> int:
        return len(await self.made.aget_messages("chat"))


def _noise(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what asyncio has said, of tasks that nobody has ended among others."""
    gc.collect()
    return [one.getMessage() for one in caplog.records if one.name == "asyncio" and one.levelno > logging.INFO]


@pytest.mark.parametrize("kind", [_AgentsSdk, _Adk, _LlamaIndex])
def test_what_is_written_as_a_run_ends_by_an_error_is_written(
    settings: Settings, caplog: pytest.LogCaptureFixture, kind: Callable[[Settings], Any]
) -> None:
    """Some is written by who was cancelled, and some by tasks that these begin, for which nobody waits."""
    store, begun, ended, unawaited = kind(settings), list[int](), list[int](), list[asyncio.Task[None]]()

    async def agent(number: int) -> None:
        await store.write(3 * number)
        begun.append(number)
        try:
            await asyncio.Event().wait()
        finally:
            unawaited.append(asyncio.create_task(store.write(3 * number + 1)))
            await store.write(3 * number + 2)
            ended.append(number)

    async def program() -> None:
        agents = [asyncio.create_task(agent(number)) for number in range(AGENTS)]
        while len(begun) < AGENTS:
            await pause()
        assert not any(one.done() for one in agents)
        raise ValueError("the program's own error")

    with pytest.raises(ValueError, match="the program's own error"):
        asyncio.run(program())
    assert sorted(ended) == [*range(AGENTS)]
    assert [task.exception() for task in unawaited] == [None] * AGENTS
    unawaited.clear()
    assert asyncio.run(store.count()) == 3 * AGENTS
    assert _noise(caplog) == []


class Logged(TypedDict):
    log: Annotated[list[str], operator.add]


def _graph(saver: StateCacheSaver) -> Any:
    async def node(_: Any) -> dict[str, Any]:
        await pause()
        return {"log": ["x"]}

    graph: Any = StateGraph(Logged)
    for name in NODES:
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_node(f"after {name}", node)
        graph.add_edge(name, f"after {name}")
    return graph.compile(checkpointer=saver)


def test_a_run_of_graphs_that_ends_by_an_error_says_that_alone_and_keeps_what_was_put(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    aput, told = StateCacheSaver.aput, list[Any]()

    async def noted(self: StateCacheSaver, *args: Any) -> Any:
        told.append(await aput(self, *args))
        return told[-1]

    monkeypatch.setattr(StateCacheSaver, "aput", noted)
    with StateCacheSaver(settings) as saver:
        graph = _graph(saver)

        async def one(thread: str) -> None:
            while True:
                await graph.ainvoke({"log": ["in"]}, config(thread))

        async def program(number: int) -> None:
            before = len(told)
            threads = [asyncio.create_task(one(f"{number}/{at}")) for at in range(AGENTS)]
            while len(told) < before + 10 + number:
                await pause()
            assert not any(one.done() for one in threads)
            raise ValueError("the program's own error")

        for number in range(RUNS):
            with pytest.raises(ValueError, match="the program's own error"):
                asyncio.run(program(number))
        assert _noise(caplog) == []
        assert all(saver.get_tuple(put) is not None for put in told)
