"""Checkpoints and graphs to be kept by a saver, and what LangGraph's own saver in memory makes of the same story."""

from __future__ import annotations

import operator
import re
from typing import Annotated, Any, TypedDict, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

METADATA: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}}
_MADE_UP = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.+]+")


def config(thread_id: Any, checkpoint_id: str | None = None, checkpoint_ns: str = "") -> RunnableConfig:
    """Return the configuration that names a thread's checkpoint, or the latest."""
    named: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}
    return {"configurable": named | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


def checkpoint(values: dict[str, Any] | None = None, *, version: Any = 1, **more: Any) -> Checkpoint:
    """Return a checkpoint whose channels are all at one version."""
    made = {
        "v": 4, "id": str(uuid6(clock_seq=-1)), "ts": "2026-01-01T00:00:00+00:00", "channel_values": values or {},
        "channel_versions": dict.fromkeys(values or {}, version), "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip
    return cast("Checkpoint", made | more)


async def put(
    saver: BaseCheckpointSaver[Any], thread_id: Any, values: dict[str, Any] | None = None, *,
    parent: RunnableConfig | None = None, ns: str = "", metadata: Any = METADATA, version: Any = 1, **more: Any,
) -> RunnableConfig:  # fmt: skip
    """Put a checkpoint whose channels have all changed, and return its configuration."""
    one = checkpoint(values, version=version, **more)
    parent_id = parent["configurable"]["checkpoint_id"] if parent else None
    return await saver.aput(config(thread_id, parent_id, ns), one, metadata, one["channel_versions"])


async def got(saver: BaseCheckpointSaver[Any], which: RunnableConfig) -> CheckpointTuple:
    """Return a checkpoint that is there."""
    found = await saver.aget_tuple(which)
    assert found is not None
    return found


async def ids(saver: BaseCheckpointSaver[Any], which: RunnableConfig | None, **more: Any) -> list[str]:
    """Return the ids of the checkpoints that a listing gives."""
    return [one.config["configurable"]["checkpoint_id"] async for one in saver.alist(which, **more)]


class Interfering:
    """A view on which something happens just before a commit, so many times."""

    def __init__(self, view: Any, interfere: Any, times: int = 1) -> None:
        self.view, self.interfere, self.left, self.commits = view, interfere, times, 0

    def __getattr__(self, verb: str) -> Any:
        if verb == "commit":
            self.commits += 1
            if self.left:
                self.left -= 1
                self.interfere(self.view)
        return getattr(self.view, verb)


class Conversation(TypedDict):
    messages: Annotated[list[str], operator.add]
    count: int


def _plan(state: Conversation) -> Any:
    return {"messages": ["planned " * 600], "count": state.get("count", 0) + 1}


def _ask(state: Conversation) -> Any:
    return {"messages": [f"answered {interrupt({'question': 'go on?'})}"]}


def _fan_out(state: Conversation) -> Any:
    return [Send("work", {"messages": [], "count": number}) for number in range(12)]


def _work(state: Conversation) -> Any:
    return {"messages": [f"worked on {state['count']}"]}


def builder() -> StateGraph[Conversation]:
    """Return a graph that plans, asks a person, and lets twelve tasks work at once."""
    graph = StateGraph(Conversation)
    graph.add_node("plan", _plan)
    graph.add_node("ask", _ask)
    graph.add_node("work", _work)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "ask")
    graph.add_conditional_edges("ask", _fan_out, ["work"])
    graph.add_edge("work", END)
    return graph


def told(saver: BaseCheckpointSaver[Any], thread_id: str) -> str:
    """Run the graph: to its question, on with the answer, and from a forked point of its past; return all it showed."""
    graph, thread = builder().compile(checkpointer=saver), config(thread_id)
    shown: list[Any] = [graph.invoke({"messages": ["hello"], "count": 0}, thread), graph.get_state(thread)]
    shown.append(graph.invoke(Command(resume="yes"), thread))
    history = [*graph.get_state_history(thread)]
    asked = next(one for one in history if one.next == ("ask",))
    fork = graph.update_state(asked.config, {"messages": ["otherwise"]})
    shown += [history, graph.invoke(None, fork), graph.invoke(Command(resume="no"), thread)]
    shown += graph.get_state_history(thread)
    return _MADE_UP.sub("…", repr(shown))


async def atold(saver: BaseCheckpointSaver[Any], thread_id: str) -> str:
    """Do the same asynchronously."""
    graph, thread = builder().compile(checkpointer=saver), config(thread_id)
    shown: list[Any] = [
        await graph.ainvoke({"messages": ["hello"], "count": 0}, thread),
        await graph.aget_state(thread),
    ]
    shown.append(await graph.ainvoke(Command(resume="yes"), thread))
    history = [one async for one in graph.aget_state_history(thread)]
    asked = next(one for one in history if one.next == ("ask",))
    fork = await graph.aupdate_state(asked.config, {"messages": ["otherwise"]})
    shown += [history, await graph.ainvoke(None, fork), await graph.ainvoke(Command(resume="no"), thread)]
    shown += [one async for one in graph.aget_state_history(thread)]
    return _MADE_UP.sub("…", repr(shown))


def outer() -> StateGraph[Conversation]:
    """Return a graph whose second node is a graph that asks a person, and keeps its own checkpoints."""
    inner = StateGraph(Conversation)
    inner.add_node("plan", _plan)
    inner.add_node("ask", _ask)
    inner.add_edge(START, "plan")
    inner.add_edge("plan", "ask")
    inner.add_edge("ask", END)
    graph = StateGraph(Conversation)
    graph.add_node("plan", _plan)
    graph.add_node("inner", inner.compile(checkpointer=True))
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "inner")
    graph.add_edge("inner", END)
    return graph


async def nested(saver: BaseCheckpointSaver[Any], thread_id: str, durability: Any) -> str:
    """Run the graph with a graph in it twice over, through its questions; return all it showed."""
    graph, thread, shown = outer().compile(checkpointer=saver), config(thread_id), list[Any]()
    for number in range(2):
        given: Any = {"messages": [f"hello {number}"], "count": number}
        shown.append(await graph.ainvoke(given, thread, durability=durability))
        shown.append(await graph.aget_state(thread, subgraphs=True))
        shown.append(await graph.ainvoke(Command(resume=f"yes {number}"), thread, durability=durability))
    shown += [one async for one in graph.aget_state_history(thread)]
    everywhere = [one async for one in saver.alist({"configurable": {"thread_id": thread_id}})]
    kept = [(one.config["configurable"]["checkpoint_ns"], one.checkpoint["channel_values"]) for one in everywhere]
    shown += sorted(repr((ns, sorted(values.items()))) for ns, values in kept)
    return _MADE_UP.sub("…", repr(shown))
