"""LangGraph's threads that are imported again: what was gone on with here, rolled back or deleted is left alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from statecache import AsyncStateCache, Settings, StateCache
from statecache.adapters.langgraph import StateCacheSaver
from statecache.adapters.langgraph.importing import ImportedThreads, import_checkpoints
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.command_line import CommandLine
from tests.support.langgraph_imports import all_told, by_name, play
from tests.support.langgraph_stories import config, outer
from tests.support.vendor_schemas import vendor_schema

Saver = Any


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def _asking(*questions: str) -> StateGraph[Log]:
    """Return a graph that asks so many questions in one node."""
    graph = StateGraph(Log)
    graph.add_node("ask", lambda _: {"log": [interrupt(one) for one in questions]})
    graph.add_edge(START, "ask")
    return graph


def _parted() -> StateGraph[Log]:
    """Return a graph whose second node is a graph that asks, and has a namespace of its own each time."""
    graph = StateGraph(Log)
    graph.add_node("note", lambda _: {"log": ["noted"]})
    graph.add_node("inner", _asking("go on?").compile())
    graph.add_edge(START, "note")
    graph.add_edge("note", "inner")
    graph.add_edge("inner", END)
    return graph


def _again(source: Saver, target: StateCacheSaver, *, dry_run: bool = False) -> ImportedThreads:
    """Import all of a saver's checkpoints, a thread's and namespace's oldest first."""
    named = [one.config["configurable"] for one in source.list(None)]
    named.sort(key=lambda one: (one["thread_id"], one["checkpoint_ns"], one["checkpoint_id"]))
    configs: list[Any] = [{"configurable": one} for one in named]
    return import_checkpoints(configs, source, target, progress=lambda _: None, dry_run=dry_run)


def _left_alone(theirs: Saver, ours: StateCacheSaver) -> None:
    """Import once more, and see that the thread is named, and that nothing of it is other than before."""
    before = all_told(ours, "t")
    for dry_run in (True, False, False):
        done = _again(theirs, ours, dry_run=dry_run)
        assert (done.kept, done.written, done.failed) == (["t"], 0, {}), dry_run
        assert all_told(ours, "t") == before


@pytest.fixture
def ours(settings: Settings) -> Iterator[StateCacheSaver]:
    """A saver here."""
    with StateCacheSaver(settings) as saver:
        yield saver


def _run_on(graph: StateGraph[Any], saver: Saver, what: str) -> None:
    graph.compile(checkpointer=saver).invoke({"log": [what]}, config("t"))


def _answered(graph: StateGraph[Any], saver: Saver, what: str) -> None:
    graph.compile(checkpointer=saver).invoke(Command(resume=what), config("t"))


def _edited(graph: StateGraph[Any], saver: Saver, what: str) -> None:
    graph.compile(checkpointer=saver).update_state(config("t"), {"log": [what]}, as_node=next(iter(graph.nodes)))


@pytest.mark.parametrize("goes_on", [_run_on, _answered, _edited])
@pytest.mark.parametrize("graph", [_asking("who?"), _parted()], ids=["one", "parted"])
def test_a_thread_that_was_gone_on_with_here_stays_as_it_is_wherever_the_other_goes_on(
    ours: StateCacheSaver, graph: StateGraph[Any], goes_on: Callable[..., None]
) -> None:
    """Of a graph in it nothing is put either: neither what it went on to there, nor what it was begun anew with."""
    theirs = InMemorySaver()
    _run_on(graph, theirs, "start")
    assert _again(theirs, ours).kept == []
    goes_on(graph, ours, "HERE")
    for more in (_answered, _run_on, _answered):
        more(graph, theirs, "THERE")
        _left_alone(theirs, ours)
    values = graph.compile(checkpointer=ours).get_state(config("t"), subgraphs=True).values
    assert "THERE" not in values["log"]


def test_a_first_answer_of_several_stays_when_the_other_has_all_of_them(ours: StateCacheSaver) -> None:
    """No head was moved here, and yet a run has begun."""
    theirs, graph = InMemorySaver(), _asking("who?", "how much?")
    _run_on(graph, theirs, "start")
    assert _again(theirs, ours).kept == []
    _answered(graph, ours, "HERE")
    for answer in ("Ada", "12"):
        _answered(graph, theirs, answer)
        _left_alone(theirs, ours)
    new = graph.compile(checkpointer=ours)
    assert [one.value for one in new.get_state(config("t")).interrupts] == ["how much?"]
    assert new.invoke(Command(resume="13"), config("t"))["log"] == ["start", "HERE", "13"]


def test_a_graph_in_a_thread_that_was_gone_on_with_here_keeps_the_thread_as_it_is(ours: StateCacheSaver) -> None:
    """One that keeps its checkpoints from run to run goes on, here or there, under the same name."""
    theirs, graph = InMemorySaver(), outer()
    graph.compile(checkpointer=theirs).invoke({"messages": ["hello"], "count": 0}, config("t"))
    assert _again(theirs, ours).kept == []
    inner = next(one for one in all_told(ours, "t") if one[0]["checkpoint_ns"])
    ours.put({"configurable": inner[0]}, inner[2] | {"id": "ffffffff"}, inner[3], {})
    play_on = graph.compile(checkpointer=theirs)
    play_on.invoke(Command(resume="yes"), config("t"))
    _left_alone(theirs, ours)


async def test_a_thread_that_was_rolled_back_here_stays_so(
    ours: StateCacheSaver, cache: AsyncStateCache, worker: Worker
) -> None:
    theirs, graph, group = InMemorySaver(), _parted(), ours.group_of("t")
    _run_on(graph, theirs, "start")
    assert _again(theirs, ours).kept == []
    async with flushing(worker):
        await cache.checkpoint(group, "asked", group=True)
        await cache.checkpoint(f"{group}/head/-", "asked")
    _answered(graph, theirs, "yes")
    done = _again(theirs, ours)
    assert (done.kept, done.written > 0) == ([], True)
    async with flushing(worker):
        await cache.rollback(group, "asked", group=True)
    _left_alone(theirs, ours)
    _run_on(graph, theirs, "more")
    _left_alone(theirs, ours)
    assert graph.compile(checkpointer=ours).get_state(config("t")).values["log"] == ["start", "noted"]


def test_a_thread_that_was_deleted_here_stays_so_with_the_graphs_in_it_that_were_begun_since(
    ours: StateCacheSaver,
) -> None:
    """What they are kept under is new, so nothing of them was ever here."""
    theirs, graph = InMemorySaver(), _parted()
    _run_on(graph, theirs, "start")
    assert _again(theirs, ours).kept == []
    ours.delete_thread("t")
    _answered(graph, theirs, "yes")
    _run_on(graph, theirs, "again")
    assert len({one[0]["checkpoint_ns"] for one in all_told(theirs, "t")}) == 3
    _left_alone(theirs, ours)
    assert all_told(ours, "t") == []
    theirs.delete_thread("t")
    _run_on(graph, theirs, "anew")
    _left_alone(theirs, ours)


def test_a_thread_that_was_pruned_here_while_it_asks_goes_on_with_what_is_new(ours: StateCacheSaver) -> None:
    """Its latest checkpoint was cut off from its parent here, which is no answer; one that is given here stays."""
    theirs, graph = InMemorySaver(), _asking("who?", "how much?", "when?")
    _run_on(graph, theirs, "start")
    assert _again(theirs, ours).kept == []
    ours.prune(["t"])
    _answered(graph, theirs, "Ada")
    _again(theirs, ours)
    new = graph.compile(checkpointer=ours)
    assert [one.value for one in new.get_state(config("t")).interrupts] == ["how much?"]
    assert new.get_state(config("t")).parent_config is None
    _answered(graph, ours, "HERE")
    ours.prune(["t"])
    _answered(graph, theirs, "12")
    _left_alone(theirs, ours)
    assert new.invoke(Command(resume="now"), config("t"))["log"] == ["start", "Ada", "HERE", "now"]


@pytest.mark.parametrize(("run", "written"), [("run 0", 1), ("run 1", 0)])
def test_a_thread_goes_on_unless_its_latest_checkpoint_was_deleted_with_its_run(
    ours: StateCacheSaver, run: str, written: int
) -> None:
    theirs, put = InMemorySaver(), config("t")
    for number in range(2):
        put = theirs.put(put, empty_checkpoint(), {"run_id": f"run {number}"}, {})
    assert _again(theirs, ours).written == 2
    ours.delete_for_runs([run])
    theirs.put(put, empty_checkpoint(), {}, {})
    done = _again(theirs, ours)
    assert (done.kept, done.written) == (["t"], written)


class _Noting:
    """A view of which it is noted what it is asked."""

    def __init__(self, view: Any, asked: list[str]) -> None:
        self.view, self.asked = view, asked

    def __getattr__(self, verb: str) -> Any:
        self.asked.append(verb)
        return getattr(self.view, verb)


class _Before:
    """A view on which something happens before the write with that number, or, of a transaction, before its end."""

    def __init__(self, view: Any, at: int, happens: Callable[[], Any], *, ending: bool = False) -> None:
        self.view, self.left, self.happens, self.ending = view, at, happens, ending

    def __getattr__(self, verb: str) -> Any:
        if verb == "transaction" and self.ending:
            return self._ended
        if verb in ("commit", "create", "delete", "set", "transaction", "update"):
            self._count()
        return getattr(self.view, verb)

    @contextmanager
    def _ended(self, *names: str, **options: Any) -> Iterator[Any]:
        with self.view.transaction(*names, **options) as opened:
            yield opened
            self._count()

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.happens()


def test_a_thread_of_many_namespaces_is_not_asked_for_one_by_one(sync_cache: StateCache) -> None:
    """Each run of a graph in it has one of its own, and what is new is mostly in another."""
    theirs, ours, asked = InMemorySaver(), StateCacheSaver(sync_cache), list[str]()
    for number in range(20):
        theirs.put(config("t", checkpoint_ns=f"sub:{number}"), empty_checkpoint(), {}, {})
    theirs.put(config("t"), empty_checkpoint(), {}, {})
    assert _again(theirs, ours).written == 21
    theirs.put(config("t"), empty_checkpoint(), {}, {})
    clients: Any = ours._clients
    clients._sync = _Noting(clients._sync, asked)
    assert _again(theirs, ours).written == 1
    assert asked.count("history") <= 1, asked


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("does", ["goes on", "deletes"])
def test_an_agent_that_comes_before_a_write_has_its_way(
    sync_cache: StateCache, at: int, first: bool, does: str, ending: bool
) -> None:
    """What it does after the import has looked, to a thread that is imported for the first time or again."""
    theirs, graph = InMemorySaver(), _asking("who?")
    agent, ours = StateCacheSaver(sync_cache), StateCacheSaver(sync_cache)
    _run_on(graph, theirs, "start")
    if not first:
        assert _again(theirs, ours).kept == []
    _answered(graph, theirs, "THERE")
    _run_on(graph, theirs, "THERE")

    def happens() -> None:
        _edited(graph, agent, "HERE") if does == "goes on" else agent.delete_thread("t")

    clients: Any = ours._clients
    clients._sync = _Before(clients._sync, at, happens, ending=ending)
    done = _again(theirs, ours)
    assert clients._sync.left < 0
    latest = graph.compile(checkpointer=agent).get_state(config("t")).values
    if does == "goes on":
        assert (done.kept, latest["log"][-1]) == (["t"], "HERE")
    elif at or not first:
        assert (done.kept, all_told(agent, "t")) == (["t"], [])
    else:  # there was nothing yet that it could delete
        assert (done.kept, all_told(agent, "t")) == ([], all_told(theirs, "t"))


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize(
    "there", [["answers"], ["answers", "answers"], ["edits"], ["answers", "edits"]], ids=lambda there: "+".join(there)
)
@pytest.mark.parametrize("at", range(2))
def test_an_answer_that_is_given_before_a_write_is_not_lost(
    sync_cache: StateCache, at: int, there: list[str], ending: bool
) -> None:
    """It moves no head, so the heads alone do not tell."""
    theirs, graph, left = InMemorySaver(), _asking("who?", "how much?"), list[Any]()
    agent, ours = StateCacheSaver(sync_cache), StateCacheSaver(sync_cache)
    _run_on(graph, theirs, "start")
    assert _again(theirs, ours).kept == []
    for one in there:
        _answered(graph, theirs, "THERE") if one == "answers" else _edited(graph, theirs, "THERE")

    def happens() -> None:
        _answered(graph, agent, "HERE")
        left.extend(all_told(agent, "t"))

    clients: Any = ours._clients
    clients._sync = _Before(clients._sync, at, happens, ending=ending)
    done = _again(theirs, ours)
    assert (done.kept, all_told(agent, "t")) == ((["t"], left) if left else ([], all_told(theirs, "t")))
    if at == 0:
        new = graph.compile(checkpointer=agent)
        assert [one.value for one in new.get_state(config("t")).interrupts] == ["how much?"]
        assert new.invoke(Command(resume="13"), config("t"))["log"] == ["start", "HERE", "13"]


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize("at", [0, 1, 5, 9, 10, 11, 12, 13])
def test_a_thread_that_is_deleted_while_it_is_imported_keeps_no_writes_of_tasks(
    sync_cache: StateCache, at: int, ending: bool
) -> None:
    """Those of many tasks stand in states of their own, which nothing that the saver shows would tell of."""
    theirs, agent, ours = InMemorySaver(), StateCacheSaver(sync_cache), StateCacheSaver(sync_cache)
    checkpoint = {**empty_checkpoint(), "id": "1"}
    put = theirs.put(config("t"), checkpoint, {}, {})  # type: ignore[arg-type]
    for number in range(12):
        theirs.put_writes(put, [("secret", "x" * 100)], f"task {number}")
    clients: Any = ours._clients
    clients._sync = _Before(clients._sync, at, lambda: agent.delete_thread("t"), ending=ending)
    done = _again(theirs, ours)
    assert clients._sync.left < 0
    left = [*sync_cache.list("langgraph/t/")]
    assert (done.kept, left) == (["t"], []) if at else (done.kept, len(left)) == ([], 6)


@pytest.mark.parametrize("does", ["goes on", "deletes"])
def test_an_agent_that_comes_when_a_graph_in_a_thread_is_put_has_its_way_too(sync_cache: StateCache, does: str) -> None:
    theirs, graph = InMemorySaver(), _parted()
    agent, ours = StateCacheSaver(sync_cache), StateCacheSaver(sync_cache)
    _run_on(graph, theirs, "start")

    def happens() -> None:
        _edited(graph, agent, "HERE") if does == "goes on" else agent.delete_thread("t")

    clients: Any = ours._clients
    clients._sync = _Before(clients._sync, len([*theirs.list(config("t"))]), happens)
    done = _again(theirs, ours)
    assert (done.kept, clients._sync.left) == (["t"], -1)
    assert [one for one in all_told(agent, "t") if one[0]["checkpoint_ns"]] == []


@pytest.mark.parametrize("at", range(4))
def test_a_thread_that_only_the_other_went_on_with_is_taken_over_also_after_imports_that_were_cut_off(
    sync_cache: StateCache, at: int
) -> None:
    theirs, graph, ours = InMemorySaver(), _parted(), StateCacheSaver(sync_cache)
    clients: Any = ours._clients
    view = clients._sync

    def cut() -> None:
        raise KeyboardInterrupt

    for number in range(2):
        _run_on(graph, theirs, f"start {number}")
        clients._sync = _Before(view, at, cut)
        with pytest.raises(KeyboardInterrupt):
            _again(theirs, ours)
        clients._sync = view
        _answered(graph, theirs, "THERE")
        done = _again(theirs, ours)
        assert (done.kept, done.failed) == ([], {})
        assert by_name(all_told(ours, "t")) == by_name(all_told(theirs, "t"))
    states = [graph.compile(checkpointer=saver).get_state(config("t")) for saver in (ours, theirs)]
    assert (states[0].values, states[0].next) == (states[1].values, states[1].next)


def test_the_command_names_a_thread_that_was_gone_on_with_here(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ours: StateCacheSaver
) -> None:
    cli = CommandLine(settings, monkeypatch, capsys)
    with vendor_schema(settings) as url, PostgresSaver.from_conn_string(url) as theirs:
        theirs.setup()
        for thread in ("here", "there"):
            play(theirs, thread)
        assert cli("import", "langgraph-postgres", url).status == 0
        play(ours, "here", "from here")
        before = all_told(ours, "here")
        for thread in ("here", "there"):
            play(theirs, thread, "from there")
        again = cli("import", "langgraph-postgres", url)
        assert (
            again.status,
            "here: left alone, in whole or in part, for it was changed or deleted, here or at its source" in again.err,
        ) == (1, True), again
        assert all_told(ours, "here") == before
        assert all_told(ours, "there") == all_told(theirs, "there")
