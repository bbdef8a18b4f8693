"""What three graphs ask of a checkpointer, recorded from real runs with scripted nodes, to be played into any saver.

    chat        twenty turns of one thread: a person says something, a model answers
    react       one run that calls a tool twelve times, with pending writes of each task
    research    one run whose channels are large: sources of 10 KB each, a plan of 20 KB, reports of up to 100 KB

Texts are words drawn at random, so none of them repeats another one. No model is asked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

SEED = 7
TURNS, TOOL_CALLS, SOURCES = 20, 12, 6
KB = 1024


class Call(NamedTuple):
    """A call of a saver: `put` or `put_writes`, at the checkpoint of which thread it comes, and what is given."""

    verb: str
    checkpoint_id: str | None
    arguments: tuple[Any, ...]

    def on(self, saver: Any, thread: str) -> None:
        """Make the call for a thread."""
        getattr(saver, self.verb)(config_of(thread, self.checkpoint_id), *self.arguments)


def config_of(thread: str, checkpoint_id: str | None = None) -> dict[str, Any]:
    """Return the configuration that names a thread's checkpoint, or the latest."""
    named = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": named | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


class Recorder(InMemorySaver):
    """LangGraph's saver in memory, which notes what is put."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Note the call, with values that nobody changes any more, and put the checkpoint."""
        kept = checkpoint | {"channel_values": dict(checkpoint["channel_values"])}
        kept["channel_versions"] = dict(checkpoint["channel_versions"])
        kept["versions_seen"] = {name: dict(seen) for name, seen in checkpoint["versions_seen"].items()}
        parent = config["configurable"].get("checkpoint_id")
        self.calls.append(Call("put", parent, (kept, dict(metadata), dict(new_versions))))
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Note the call, and keep the writes."""
        self.calls.append(Call("put_writes", config["configurable"]["checkpoint_id"], ([*writes], task_id, task_path)))
        super().put_writes(config, writes, task_id, task_path)


class Words:
    """Texts of words that were really said, drawn at random."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._rng = Random(SEED)
        self._words = sorted({word for text in texts for word in text.split()})

    def text(self, size: int) -> str:
        """Return a text of that many characters."""
        return " ".join(self._rng.choices(self._words, k=size // 4))[:size]

    def between(self, least: int, most: int) -> str:
        """Return a text of some length between the two."""
        return self.text(self._rng.randint(least, most))


def chat(words: Words) -> list[Call]:
    """Return the calls of a conversation of many short turns."""

    def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(words.between(60, 400))]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return _recorded(graph, ({"messages": [HumanMessage(words.between(20, 200))]} for _ in range(TURNS)))


def react(words: Words) -> list[Call]:
    """Return the calls of a run that goes back and forth between a model and its tools."""

    def think(state: MessagesState) -> Any:
        number = len(state["messages"]) // 2
        calls = [{"name": "search", "args": {"query": words.text(60)}, "id": f"call-{number}"}]
        return {"messages": [AIMessage(words.between(60, 300), tool_calls=calls if number < TOOL_CALLS else [])]}

    def use(state: MessagesState) -> Any:
        asked = state["messages"][-1]
        return {"messages": [ToolMessage(words.between(500, 2 * KB), tool_call_id=asked.tool_calls[0]["id"])]}  # type: ignore[union-attr]

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("use", use)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", lambda state: "use" if state["messages"][-1].tool_calls else END)
    graph.add_edge("use", "think")
    return _recorded(graph, [{"messages": [HumanMessage(words.text(300))]}])


class Research(TypedDict):
    """What the third graph holds."""

    question: str
    plan: dict[str, Any]
    sources: Annotated[list[dict[str, Any]], operator.add]
    report: str


def research(words: Words) -> list[Call]:
    """Return the calls of a run whose channels are large and few."""

    def plan(state: Research) -> Any:
        return {"plan": {"steps": [words.text(KB) for _ in range(20)]}}

    def read(state: Research) -> Any:
        return {"sources": [{"url": f"https://example.org/{len(state['sources'])}", "text": words.text(10 * KB)}]}

    def write(state: Research) -> Any:
        return {"report": words.text(50 * KB) if not state.get("report") else state["report"] + words.text(50 * KB)}

    graph = StateGraph(Research)
    for name, node in (("plan", plan), ("read", read), ("write", write)):
        graph.add_node(name, node)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "read")
    graph.add_conditional_edges("read", lambda state: "read" if len(state["sources"]) < SOURCES else "write")
    graph.add_conditional_edges("write", lambda state: "write" if len(state["report"]) < 100 * KB else END)
    return _recorded(graph, [{"question": words.text(200), "sources": []}])


PROFILES: Mapping[str, Callable[[Words], list[Call]]] = {"chat": chat, "react": react, "research": research}


def _recorded(graph: StateGraph[Any], inputs: Any) -> list[Call]:
    """Return what the graph asks of its saver for these inputs, one run after the other on one thread."""
    recorder = Recorder()
    compiled: Any = graph.compile(checkpointer=recorder)
    for given in inputs:
        compiled.invoke(given, {**config_of("recorded"), "recursion_limit": 100}, durability="sync")
    return recorder.calls
