"""Whole threads: listed, deleted, thinned out, copied; what they hold of the past; delta channels."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from statecache import AsyncStateCache, ConfigurationError, Settings
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeSettings
from tests.support.langgraph_stories import METADATA, builder, checkpoint, config, got, ids, put

LARGE = 20_000


@pytest.fixture
def saver(cache: AsyncStateCache) -> StateCacheSaver:
    """A saver on an asynchronous client."""
    return StateCacheSaver(cache)


def id_of(which: RunnableConfig) -> str:
    return str(which["configurable"]["checkpoint_id"])


async def names(cache: AsyncStateCache, prefix: str) -> list[str]:
    return [state.key async for state in cache.list(prefix, values=False)]


async def chain(saver: StateCacheSaver, thread_id: str, count: int, **more: Any) -> list[RunnableConfig]:
    """Put checkpoints, each the child of the one before, with a large and a small channel."""
    made: list[RunnableConfig] = []
    for number in range(count):
        values = {"large": f"{number} " * LARGE, "small": number}
        parent = made[-1] if made else None
        made.append(await put(saver, thread_id, values, parent=parent, version=number + 1, **more))
    return made


async def test_a_long_thread_keeps_one_state_for_a_large_channel_and_all_of_its_past(
    saver: StateCacheSaver, cache: AsyncStateCache, worker: Worker
) -> None:
    made = await chain(saver, "42", 12)
    await flush(worker)
    assert await names(cache, "langgraph/42/ch/") == ["langgraph/42/ch/-/large"]
    sizes = [len(str(state.value)) async for state in cache.list("langgraph/42/cp/")]
    assert max(sizes) < 1500
    for number, which in enumerate(made):
        assert (await got(saver, which)).checkpoint["channel_values"] == {
            "large": f"{number} " * LARGE,
            "small": number,
        }
    listed = [one async for one in saver.alist(config("42"))]
    assert [one.checkpoint["channel_values"]["small"] for one in listed] == [*range(11, -1, -1)]
    assert all(one.checkpoint["channel_values"]["large"].startswith(f"{11 - at} ") for at, one in enumerate(listed))


async def test_checkpoints_of_all_threads_and_namespaces_are_listed_with_the_newest_first(
    saver: StateCacheSaver,
) -> None:
    made = [
        id_of(await put(saver, thread, {"a": 1}, ns=ns, metadata={"source": "loop", "step": step}))
        for step in range(3)
        for thread in ("1", "2")
        for ns in ("", "child:1")
    ]
    assert await ids(saver, None) == made[::-1]
    assert await ids(saver, None, limit=3, before=config("1", made[6])) == made[3:6][::-1]
    assert (
        await ids(saver, {"configurable": {"thread_id": "2"}})
        == [one for at, one in enumerate(made) if at % 4 > 1][::-1]
    )
    assert await ids(saver, config("2", checkpoint_ns="child:1")) == made[3::4][::-1]
    assert await ids(saver, config("2"), limit=1) == [made[10]]
    assert await ids(saver, config("2"), limit=0) == []
    assert await ids(saver, config("2"), before=config("2", made[6])) == [made[2]]
    assert await ids(saver, None, filter={"step": 1}) == made[4:8][::-1]
    assert await ids(saver, config("1", made[4])) == [made[4]]
    assert await ids(saver, config("1", made[4]), filter={"step": 2}) == []
    assert await ids(saver, {"configurable": {"thread_id": "1", "checkpoint_id": made[5]}}) == [made[5]]


async def test_more_checkpoints_than_a_page_are_listed_whole(saver: StateCacheSaver) -> None:
    made = [id_of(await put(saver, "42", {"a": number})) for number in range(120)]
    assert await ids(saver, config("42")) == made[::-1]
    assert await ids(saver, config("42"), limit=70) == made[::-1][:70]
    assert await ids(saver, {"configurable": {"thread_id": "42"}}) == made[::-1]


@pytest.mark.parametrize("flushed", [False, True])
async def test_metadata_is_compared_as_postgres_does(saver: StateCacheSaver, worker: Worker, flushed: bool) -> None:
    one = id_of(
        await put(
            saver, "1", metadata={"step": 1, "on": True, "a.b": "dotted", "who": None, "in": {"x": 1, "y": [1, 2]}}
        )
    )
    other = id_of(await put(saver, "1", metadata={"step": True, "on": 1, "a": {"b": "dotted"}, "in": {"x": 2}}))
    if flushed:
        await flush(worker)
    for wanted, found in (
        ({"step": 1}, [one]), ({"step": 1.0}, [one]), ({"on": True}, [one]), ({"on": 1}, [other]),
        ({"a.b": "dotted"}, [one]), ({"a": {"b": "dotted"}}, [other]), ({"who": None}, [one]),
        ({"in": {"x": 1}}, [one]), ({"in": {"y": [2]}}, [one]), ({"in": {}}, [other, one]), ({}, [other, one]),
        ({"step": 1, "in": {"x": 2}}, []), ({"": 1}, []),
    ):  # fmt: skip
        places: list[RunnableConfig | None] = [config("1"), {"configurable": {"thread_id": "1"}}, None]
        for which in places:
            assert await ids(saver, which, filter=wanted) == found, wanted


async def test_a_deleted_thread_leaves_nothing_and_others_stay(saver: StateCacheSaver, cache: AsyncStateCache) -> None:
    for thread in ("4", "42", "42/1"):
        await chain(saver, thread, 3)
        await chain(saver, thread, 2, ns="child:1")
    which = await put(saver, "42", {"a": 1})
    for number in range(300):
        await saver.aput_writes(which, [("a", number)], f"task{number}")
    assert len(await names(cache, "langgraph/42/")) > 300
    await saver.adelete_thread("42")
    assert await names(cache, "langgraph/42/") == []
    assert [len(await ids(saver, {"configurable": {"thread_id": one}})) for one in ("4", "42", "42/1")] == [5, 0, 5]


async def test_the_head_goes_back_where_the_latest_checkpoint_is_deleted_with_its_run(
    saver: StateCacheSaver, cache: AsyncStateCache
) -> None:
    first = await put(saver, "42", {"a": "x" * LARGE}, metadata={"run_id": "one"})
    second = await put(saver, "42", {"a": "y" * LARGE}, parent=first, metadata={"run_id": "two"})
    await saver.aput_writes(second, [("a", "z" * 100_000)], "task")
    await put(saver, "43", {"a": 1}, metadata={"run_id": "two"})
    await saver.adelete_for_runs(["two", "three"])
    assert (await got(saver, config("42"))).checkpoint["channel_values"] == {"a": "x" * LARGE}
    assert await saver.aget_tuple(config("43")) is None
    assert await names(cache, "langgraph/42/w/") == await names(cache, "langgraph/43/") == []
    third = await put(saver, "42", {"a": "z" * LARGE}, parent=first)
    assert id_of((await got(saver, config("42"))).config) == id_of(third)


async def test_pruned_threads_keep_the_latest_of_each_namespace(saver: StateCacheSaver, cache: AsyncStateCache) -> None:
    made = await chain(saver, "42", 4)
    child = await chain(saver, "42", 3, ns="child:1")
    await chain(saver, "43", 2)
    await saver.aput_writes(made[1], [("a", "z" * 100_000)], "old")
    await saver.aput_writes(made[-1], [("a", "z" * 100_000)], "new")
    to_come = checkpoint()
    await saver.aput_writes(config("42", to_come["id"]), [("a", 1)], "early")
    await saver.aprune(["42"])
    found = await got(saver, config("42"))
    assert (found.checkpoint["channel_values"]["small"], found.parent_config) == (3, None)
    assert found.pending_writes == [("new", "a", "z" * 100_000)]
    assert sorted(await ids(saver, {"configurable": {"thread_id": "42"}})) == sorted(
        [id_of(made[-1]), id_of(child[-1])]
    )
    assert len(await names(cache, "langgraph/42/w/")) == 1
    await saver.aput(made[-1], to_come, METADATA, {})
    assert (await got(saver, config("42"))).pending_writes == [("early", "a", 1)]
    assert len(await ids(saver, config("43"))) == 2
    await saver.aprune(["42", "43"], strategy="delete")
    assert await names(cache, "langgraph/") == []
    with pytest.raises(ValueError, match="is not one of"):
        await saver.aprune(["42"], strategy="keep_some")
    with pytest.raises(TypeError, match="not one text"):
        await saver.aprune("42")


async def test_a_copied_thread_stands_by_itself(saver: StateCacheSaver, worker: Worker) -> None:
    graph = builder().compile(checkpointer=saver)
    await graph.ainvoke({"messages": ["hello"], "count": 0}, config("from"))
    made = await chain(saver, "from", 3, ns="child:1")
    for number in range(12):
        await saver.aput_writes(made[1], [("a", number), ("b", "x" * 10_000)], f"task{number:02}")

    async def shown(thread: str) -> list[Any]:
        found = [one async for one in saver.alist({"configurable": {"thread_id": thread}})]
        return [
            (one.checkpoint, one.metadata, one.pending_writes, one.parent_config and id_of(one.parent_config))
            for one in found
        ]

    before = await shown("from")
    assert len(before) > 5
    for _ in range(2):
        await saver.acopy_thread("from", "to/1")
    await flush(worker)
    assert await shown("to/1") == before
    assert await shown("from") == before
    await saver.adelete_thread("from")
    assert await shown("to/1") == before


async def test_a_copy_that_is_whole_stays_so_when_a_pruned_thread_is_copied_again(saver: StateCacheSaver) -> None:
    graph = note_taker(saver)

    async def notes(thread: str) -> dict[str, Any]:
        found = [one async for one in graph.aget_state_history(config(thread))]
        return {id_of(one.config): (one.values, one.parent_config and id_of(one.parent_config)) for one in found}

    for number in range(8):
        await graph.ainvoke({"notes": [f"given {number}"]}, config("from"))
    await saver.acopy_thread("from", "to")
    before = await notes("to")
    await saver.aprune(["from"])
    await graph.ainvoke({"notes": ["given later"]}, config("from"))
    await saver.acopy_thread("from", "to")
    after = await notes("to")
    assert {name: after[name] for name in before} == before
    assert len(after) > len(before)
    latest = await saver.aget_tuple(config("from"))
    await saver.aprune(["to"])
    await saver.acopy_thread("from", "to")
    assert latest is not None
    assert (await notes("to"))[id_of(latest.config)] == (await notes("from"))[id_of(latest.config)]


async def test_a_copy_of_a_pruned_thread_may_be_larger_than_a_commit(saver: StateCacheSaver, worker: Worker) -> None:
    values = dict[str, Any]()
    parent: RunnableConfig | None = None
    for number, name in enumerate("abc"):
        values[name] = bytes([number]) * 7 * 1024 * 1024
        one = checkpoint(values, channel_versions=dict(zip("abc", "123", strict=True)))
        which = config("from", id_of(parent) if parent else None)
        parent = await saver.aput(which, one, METADATA, {name: one["channel_versions"][name]})
    await saver.aprune(["from"])
    await saver.acopy_thread("from", "to")
    await saver.adelete_thread("from")
    await flush(worker)
    assert (await got(saver, config("to"))).checkpoint["channel_values"] == values


def added(notes: list[str], more: list[list[str]]) -> list[str]:
    """Return the notes with more of them, however they come."""
    return notes + [one for some in more for one in some]


class Notes(TypedDict):
    notes: Annotated[list[str], DeltaChannel(added, snapshot_frequency=5)]


def note_taker(saver: BaseCheckpointSaver[Any]) -> Any:
    """Return a graph whose only channel is kept as deltas, with a snapshot now and then."""
    graph = StateGraph(Notes)
    graph.add_node("note", lambda state: {"notes": [f"note {len(state['notes'])} " + "x" * 100]})
    graph.add_edge(START, "note")
    return graph.compile(checkpointer=saver)


async def test_delta_channels_are_rebuilt_and_pruning_leaves_what_they_are_made_of(
    saver: StateCacheSaver, worker: Worker
) -> None:
    ours, theirs = note_taker(saver), note_taker(InMemorySaver())
    for number in range(9):
        given = {"notes": [f"given {number}"]}
        assert await ours.ainvoke(given, config("42")) == await theirs.ainvoke(given, config("42"))
    history = [one.values async for one in ours.aget_state_history(config("42"))]
    assert history == [one.values for one in theirs.get_state_history(config("42"))]
    await flush(worker)
    latest = (await ours.aget_state(config("42"))).values
    held = await saver.aget_delta_channel_history(config=config("42"), channels=["notes"])
    assert held == await BaseCheckpointSaver.aget_delta_channel_history(saver, config=config("42"), channels=["notes"])
    assert held["notes"]["writes"]
    before = len(await ids(saver, config("42")))
    await saver.aprune(["42"])
    assert 1 < len(await ids(saver, config("42"))) < before
    assert (await ours.aget_state(config("42"))).values == latest
    again = {"notes": ["afterwards"]}
    assert await ours.ainvoke(again, config("42")) == await theirs.ainvoke(again, config("42"))
    assert await saver.aget_delta_channel_history(config=config("none"), channels=["a"]) == {"a": {"writes": []}}


async def test_setting_up_says_what_is_not_there(make_settings: MakeSettings) -> None:
    settings: Settings = make_settings(migrated=False)
    async with StateCacheSaver.from_conn_string(
        settings.redis_url, settings.postgres_url, prefix=settings.prefix, postgres_schema=settings.postgres_schema
    ) as saver:
        with pytest.raises(ConfigurationError, match="migrate"):
            await saver.asetup()
    with StateCacheSaver(make_settings()) as there:
        there.setup()
        assert there.group_of("a/b") == "langgraph/a%2Fb"
