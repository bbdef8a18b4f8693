"""Threads of which a policy has let values go: delta channels that are made of these, copies, and deleted runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph

from statecache import AsyncStateCache, Settings, StateCache, UsageError, VersionNotFound
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.support.histories import Psql, let_go
from tests.support.langgraph_stories import METADATA, checkpoint, config, got, ids, put

Told = dict[str, dict[str, Any]]


def added(notes: list[str], more: list[list[str]]) -> list[str]:
    """Return the notes with more of them, however they come."""
    return notes + [one for some in more for one in some]


class Notes(TypedDict, total=False):
    notes: Annotated[list[str], DeltaChannel(added, snapshot_frequency=3)]


class NotesAndText(Notes, total=False):
    text: str


def _note(state: Any) -> dict[str, Any]:
    return {"notes": [f"note {len(state['notes'])} " + "x" * 3000]}


def _note_and_write(state: Any) -> dict[str, Any]:
    return _note(state) | {"text": f"{len(state['notes'])} " * 4000}


def graph_of(saver: StateCacheSaver, *, text: bool = False) -> Any:
    """Return a graph that keeps notes as deltas with a snapshot now and then, and perhaps a large text, too."""
    graph = StateGraph(NotesAndText if text else Notes)
    graph.add_node("note", _note_and_write if text else _note)
    graph.add_edge(START, "note")
    return graph.compile(checkpointer=saver)


async def told(graph: Any, thread: str, **more: Any) -> Told:
    """Return what the history of a thread tells, by the ids of its checkpoints."""
    history = [one async for one in graph.aget_state_history(config(thread), **more)]
    return {one.config["configurable"]["checkpoint_id"]: one.values for one in history}


async def play(graph: Any, runs: int, thread: str = "42") -> Told:
    """Run a graph so often, each run with an id of its own, and return what its history tells."""
    for number in range(runs):
        which = config(thread) | {"metadata": {"run_id": f"run {number}"}}
        await graph.ainvoke({"notes": [f"given {number}"]}, which)
    return await told(graph, thread)


@pytest.fixture(params=["async", "sync"])
def saver(request: pytest.FixtureRequest, cache: AsyncStateCache, sync_cache: StateCache) -> StateCacheSaver:
    """A saver on either client."""
    return StateCacheSaver(cache if request.param == "async" else sync_cache)


LetGo = Callable[[], Any]


@pytest.fixture
def only_newest(settings: Settings, psql: Psql, worker: Worker) -> LetGo:
    """Have all values go that are not the newest."""

    async def gone() -> None:
        assert await let_go(settings, psql, worker) > 0

    return gone


@pytest.mark.parametrize("text", [False, True], ids=["deltas", "with-text"])
async def test_a_history_leaves_out_what_is_made_of_a_snapshot_that_is_gone(
    saver: StateCacheSaver, settings: Settings, only_newest: LetGo, *, text: bool
) -> None:
    before = await play(graph_of(saver, text=text), 7)
    await only_newest()
    async with StateCacheSaver(settings) as fresh:
        graph = graph_of(fresh, text=text)
        readable: Told = {}
        for name in before:
            try:
                readable[name] = (await graph.aget_state(config("42", name))).values
            except VersionNotFound:
                continue
        assert 0 < len(readable) < len(before)
        assert {name: before[name] for name in readable} == readable
        assert await told(graph, "42") == readable
        first = next(iter(before))
        assert await told(graph, "42", limit=1) == {first: before[first]}
        assert len(await told(graph, "42", filter={"source": "loop"})) < len(readable)
        everywhere = [one async for one in fresh.alist({"configurable": {"thread_id": "42"}})]
        assert [one.config["configurable"]["checkpoint_id"] for one in everywhere] == [*readable]


@pytest.mark.parametrize("text", [False, True], ids=["deltas", "with-text"])
async def test_a_copy_of_what_is_left_holds_what_the_first_thread_holds(
    saver: StateCacheSaver, cache: AsyncStateCache, settings: Settings, only_newest: LetGo, *, text: bool
) -> None:
    await play(graph_of(saver, text=text), 7)
    await only_newest()
    async with StateCacheSaver(settings) as fresh:
        graph = graph_of(fresh, text=text)
        left = await told(graph, "42")
        for _ in range(2):
            await fresh.acopy_thread("42", "copy")
            assert await told(graph, "copy") == left
        copied = [state.key async for state in cache.list("langgraph/copy/cp/", values=False)]
        assert text or len(copied) == len(left), "what is left out is not there, unless others are made of it"
        await graph.ainvoke({"notes": ["given later"]}, config("42"))
        await fresh.acopy_thread("42", "copy")
        assert await told(graph, "copy") == await told(graph, "42")
        assert len(await told(graph, "copy")) > len(left)
        assert (await graph.ainvoke({"notes": ["on"]}, config("copy")))["notes"][-2] == "on"


async def test_a_delta_channel_is_kept_where_the_head_goes_back(
    saver: StateCacheSaver, settings: Settings, only_newest: LetGo
) -> None:
    await play(graph_of(saver), 7)
    await saver.adelete_for_runs([f"run {number}" for number in range(4, 7)])
    left = (await graph_of(saver).aget_state(config("42"))).values
    await only_newest()
    async with StateCacheSaver(settings) as fresh:
        graph = graph_of(fresh)
        assert (await graph.aget_state(config("42"))).values == left
        assert len(left["notes"]) == 8
        again = await graph.ainvoke({"notes": ["again"]}, config("42"))
        assert again["notes"][:9] == [*left["notes"], "again"]


async def test_the_head_goes_back_to_the_newest_of_which_all_is_there(
    saver: StateCacheSaver, settings: Settings, only_newest: LetGo
) -> None:
    await play(graph_of(saver), 7)
    await only_newest()
    before = await told(graph_of(saver), "42")
    async with StateCacheSaver(settings) as fresh:
        graph = graph_of(fresh)
        await fresh.adelete_for_runs(["run 6", "run 5"])
        left = await told(graph, "42")
        assert (await got(fresh, config("42"))).config["configurable"]["checkpoint_id"] == next(iter(left))
        assert {name: before[name] for name in left} == left
        await graph.ainvoke({"notes": ["again"]}, config("42"))


async def test_a_run_without_which_nothing_could_be_read_is_not_deleted(
    saver: StateCacheSaver, settings: Settings, only_newest: LetGo
) -> None:
    first = await put(saver, "42", {"log": "1 " * 4000}, metadata={**METADATA, "run_id": "first"})
    inner = await put(saver, "42", {"n": 1}, ns="inner", metadata={**METADATA, "run_id": "second"})
    metadata = {**METADATA, "run_id": "second"}
    second = await put(saver, "42", {"log": "2 " * 4000}, parent=first, metadata=metadata, version=2)
    other = await put(saver, "1", {"log": "3 " * 4000}, metadata=metadata)
    await only_newest()
    async with StateCacheSaver(settings) as fresh:
        for _ in range(2):
            with pytest.raises(UsageError, match=r"'42'.*delete_thread"):
                await fresh.adelete_for_runs(["second"])
        assert await got(fresh, config("42")) == await got(fresh, second)
        assert await got(fresh, config("42", checkpoint_ns="inner")) == await got(fresh, inner)
        assert await got(fresh, other)
        third = await put(fresh, "42", {"log": "4 " * 4000}, parent=second, version=3)
        await fresh.adelete_for_runs(["second"])
        assert await ids(fresh, config("42")) == [third["configurable"]["checkpoint_id"]]
        await fresh.adelete_for_runs(["first"])
        assert await got(fresh, config("42"))


async def test_a_head_goes_back_to_one_whose_snapshot_is_deleted_with_it(saver: StateCacheSaver) -> None:
    """LangGraph has it so: what its delta channels are made of then begins behind what was deleted."""
    doomed = {**METADATA, "run_id": "first"}
    first = await put(saver, "42", {"notes": large(1)}, metadata=doomed)
    second = await put(saver, "42", {"n": 2}, parent=first, **made_of_earlier(2))
    await put(saver, "42", {"notes": large(3)}, parent=second, metadata=doomed, version=3)
    await saver.adelete_for_runs(["first"])
    assert (await got(saver, config("42"))).config == second
    held = await saver.aget_delta_channel_history(config=config("42"), channels=["notes"])
    assert held["notes"] == {"writes": []}


async def test_all_runs_of_a_thread_may_be_deleted_at_once(
    saver: StateCacheSaver, cache: AsyncStateCache, only_newest: LetGo
) -> None:
    await play(graph_of(saver, text=True), 2)
    await only_newest()
    await saver.adelete_for_runs(["run 0", "run 1"])
    assert [one.key async for one in cache.list("langgraph/42/", values=False)] == []
    assert len((await graph_of(saver, text=True).ainvoke({"notes": ["again"]}, config("42")))["notes"]) == 2


async def beside_a_run(saver: StateCacheSaver) -> RunnableConfig:
    """Put a checkpoint that is made of earlier snapshots, while another run has put some of its own since."""
    first = await put(saver, "42", {"notes": large(1), "marks": large(2)})
    second = await put(saver, "42", {"n": 2}, parent=first, **made_of_earlier(2))
    other = await put(saver, "42", {"notes": large(3)}, parent=first, version=3)
    await put(saver, "42", {"marks": large(4)}, parent=other, version=4)
    return await put(saver, "42", {"n": 3}, parent=second, **made_of_earlier(5))


async def beside_a_late_one(saver: StateCacheSaver) -> RunnableConfig:
    """Put a checkpoint that comes late, with a snapshot of its own."""
    first = await put(saver, "42", {"notes": large(1), "marks": large(2)})
    late = checkpoint({"notes": large(3)}, version=2)
    second = await put(saver, "42", {"n": 2}, parent=first, **made_of_earlier(3))
    await saver.aput(first, late, METADATA, late["channel_versions"])
    return second


def large(number: int) -> list[str]:
    """Return a value that gets a state of its own."""
    return [f"{number} " * 4000]


def made_of_earlier(version: int) -> dict[str, Any]:
    """Return what else is put with a checkpoint whose notes are those of an ancestor."""
    metadata = {**METADATA, "counters_since_delta_snapshot": {"notes": [1, 1], "marks": [1, 1]}}
    return {"metadata": metadata, "channel_versions": dict.fromkeys(["notes", "marks", "n"], version)}


Puts = Callable[[StateCacheSaver], Awaitable[RunnableConfig]]


async def is_kept(settings: Settings, latest: RunnableConfig) -> None:
    """Look whether that is the latest checkpoint, and what its delta channels are made of is there."""
    async with StateCacheSaver(settings) as fresh:
        assert (await got(fresh, config("42"))).config == latest
        held = await fresh.aget_delta_channel_history(config=config("42"), channels=["notes", "marks"])
        assert (held["notes"]["seed"], held["marks"]["seed"]) == (large(1), large(2))
        assert latest["configurable"]["checkpoint_id"] in await ids(fresh, config("42"))


@pytest.mark.parametrize("puts", [beside_a_run, beside_a_late_one])
async def test_what_the_latest_one_s_delta_channels_are_made_of_is_kept_under_any_policy(
    saver: StateCacheSaver, settings: Settings, only_newest: LetGo, puts: Puts
) -> None:
    latest = await puts(saver)
    await only_newest()
    await is_kept(settings, latest)


@pytest.mark.parametrize("puts", [beside_a_run, beside_a_late_one])
async def test_what_they_are_made_of_goes_ahead_where_one_commit_has_no_room_for_it(
    settings: Settings, only_newest: LetGo, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statecache.adapters.langgraph.channels.COMMIT_BYTES_MAX", 10_000)
    monkeypatch.setattr("statecache.core.commit.attempts.COMMIT_BYTES_MAX", 12_000)
    async with StateCacheSaver(settings) as saver:
        latest = await puts(saver)
        await only_newest()
        await is_kept(settings, latest)


async def is_gone(settings: Settings, graph_with: Callable[[StateCacheSaver], Any], which: RunnableConfig) -> bool:
    """Return whether a process that holds nothing is told that a policy has let values of a checkpoint go."""
    async with StateCacheSaver(settings) as fresh:
        try:
            await graph_with(fresh).aget_state(which)
        except VersionNotFound:
            return True
    return False


async def test_who_goes_back_to_what_it_holds_alone_puts_it_again_for_all(
    saver: StateCacheSaver, settings: Settings, only_newest: LetGo
) -> None:
    """A fork, a fork of a checkpoint that is on no way to the latest any more, and so on."""
    with_text = partial(graph_of, text=True)
    mine, forked = with_text(saver), 0
    await play(mine, 5)
    for old in [one async for one in mine.aget_state_history(config("42"))][3:-1:3]:
        await only_newest()
        forked += await is_gone(settings, with_text, old.config)
        await mine.aupdate_state(old.config, {"text": "edited"}, as_node="note")
        async with StateCacheSaver(settings) as fresh:
            found = await with_text(fresh).aget_state(config("42"))
            assert found.values == old.values | {"text": "edited"}
            assert await told(with_text(fresh), "42", limit=1) == {
                found.config["configurable"]["checkpoint_id"]: found.values
            }
            on = await with_text(fresh).ainvoke({"notes": ["on"]}, config("42"))
            assert on["notes"][: len(old.values["notes"]) + 1] == [*old.values["notes"], "on"]
    assert forked > 1


async def test_a_run_from_what_this_process_holds_alone_is_gone_on_with_by_all(
    saver: StateCacheSaver, settings: Settings, only_newest: LetGo
) -> None:
    await play(graph_of(saver), 5)
    history = [one async for one in graph_of(saver).aget_state_history(config("42"))]
    await only_newest()
    ends = [one for one in history if not one.next and await is_gone(settings, graph_of, one.config)]
    for end in ends:
        mine = await graph_of(saver).ainvoke({"notes": ["said otherwise"]}, end.config)
        await only_newest()
        async with StateCacheSaver(settings) as fresh:
            assert (await graph_of(fresh).aget_state(config("42"))).values == mine
            await graph_of(fresh).ainvoke({"notes": ["on"]}, config("42"))
    assert ends


async def test_a_head_goes_back_to_what_this_process_holds_alone(
    saver: StateCacheSaver, settings: Settings, only_newest: LetGo
) -> None:
    before = await play(graph_of(saver), 7)
    await only_newest()
    await saver.adelete_for_runs(["run 6", "run 5"])
    await only_newest()
    async with StateCacheSaver(settings) as fresh:
        latest = await graph_of(fresh).aget_state(config("42"))
    assert latest.values == before[latest.config["configurable"]["checkpoint_id"]]
    assert len(latest.values["notes"]) == 10


async def made_of_an_ancestor(saver: StateCacheSaver, first: RunnableConfig) -> RunnableConfig:
    """Go on from a checkpoint, with a delta channel that is made of its value."""
    return await put(saver, "42", {"n": 9}, parent=first, **made_of_earlier(9))


async def with_the_parent_s(saver: StateCacheSaver, first: RunnableConfig) -> RunnableConfig:
    """Go on from a checkpoint, with a delta channel that has not changed."""
    fork = checkpoint({"n": 9}, channel_versions={"notes": 1, "n": 9})
    return await saver.aput(first, fork, METADATA, {"n": 9})


Forks = Callable[[StateCacheSaver, RunnableConfig], Awaitable[RunnableConfig]]


@pytest.mark.parametrize("forks", [made_of_an_ancestor, with_the_parent_s])
async def test_a_fork_of_what_is_gone_is_refused_before_anything_is_written(
    saver: StateCacheSaver, cache: AsyncStateCache, settings: Settings, only_newest: LetGo, forks: Forks
) -> None:
    first = await put(saver, "42", {"notes": large(1), "n": 1})
    second = await put(saver, "42", {"notes": large(2), "n": 2}, parent=first, version=2)
    await only_newest()

    async def states() -> dict[str, str]:
        return {one.key: one.change_id async for one in cache.list("langgraph/", values=False)}

    async with StateCacheSaver(settings) as fresh:
        before = await states()
        with pytest.raises(VersionNotFound, match="ch/-/notes"):
            await forks(fresh, first)
        assert await states() == before
        assert (await got(fresh, config("42"))).config == second
        fork = await forks(saver, first)
        assert (await got(fresh, config("42"))).config == fork
        held = await fresh.aget_delta_channel_history(config=fork, channels=["notes"])
        own = (await got(fresh, fork)).checkpoint["channel_values"].get("notes")
        assert (own or held["notes"]["seed"]) == large(1)


async def test_a_copy_that_has_lost_what_a_later_fork_is_made_of_is_not_gone_on_with(
    saver: StateCacheSaver, settings: Settings, only_newest: LetGo
) -> None:
    first = await put(saver, "42", {"notes": large(1), "n": 1})
    second = await put(saver, "42", {"notes": large(2), "n": 2}, parent=first, version=2)
    await saver.acopy_thread("42", "copy")
    await made_of_an_ancestor(saver, first)
    await only_newest()
    async with StateCacheSaver(settings) as fresh:
        with pytest.raises(VersionNotFound, match="copy/ch/-/notes"):
            await fresh.acopy_thread("42", "copy")
        left = await got(fresh, config("copy"))
        assert left.checkpoint == (await got(saver, second)).checkpoint
        await fresh.acopy_thread("42", "another")
        await saver.acopy_thread("42", "copy")
        for thread in ("another", "copy"):
            held = await fresh.aget_delta_channel_history(config=config(thread), channels=["notes"])
            assert held["notes"]["seed"] == large(1)
