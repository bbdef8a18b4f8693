"""What the library keeps below a thread of its own, as named checkpoints, beside what the saver keeps there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from statecache import AsyncStateCache, CodecError
from statecache.adapters.langgraph import StateCacheSaver
from statecache.adapters.langgraph.importing import import_checkpoints
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.langgraph_stories import checkpoint, config, got, ids, put

LARGE = "x" * 100_000
THREAD: RunnableConfig = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def saver(cache: AsyncStateCache) -> StateCacheSaver:
    """A saver on an asynchronous client."""
    return StateCacheSaver(cache)


async def _played(saver: StateCacheSaver, run_id: str = "one") -> list[Any]:
    """Put two checkpoints in the thread and two in a graph in it, with large values and pending writes of a task."""
    made = list[Any]()
    for ns in ("", "child:1"):
        for number in range(2):
            parent = made[-1] if number else None
            values, metadata = {"a": LARGE, "n": number}, {"run_id": run_id, "step": number}
            made.append(await put(saver, "t", values, parent=parent, ns=ns, version=number + 1, metadata=metadata))
            await saver.aput_writes(made[-1], [("a", LARGE)], "task")
    return made


async def _named(cache: AsyncStateCache) -> set[str]:
    """Name a point of each state of the thread, and of all of it, and return the keys of what was made."""
    group, before = "langgraph/t", {state.key async for state in cache.list("langgraph/t/", values=False)}
    for key in before:
        await cache.checkpoint(key, "one")
    await cache.checkpoint(group, "one", group=True)
    after = {state.key async for state in cache.list("langgraph/t/", values=False)}
    assert len(after) == 2 * len(before) + 1
    return after - before


@pytest.mark.parametrize("how", ["delete", "prune"])
async def test_what_a_deleted_thread_can_be_gone_back_to_by_outlives_it(
    saver: StateCacheSaver, cache: AsyncStateCache, worker: Worker, how: str
) -> None:
    made = await _played(saver)
    async with flushing(worker):
        kept = await _named(cache)
        await (saver.adelete_thread("t") if how == "delete" else saver.aprune(["t"], strategy="delete"))
        assert {state.key async for state in cache.list("langgraph/t/", values=False)} == kept
        assert await ids(saver, THREAD) == []
        assert [one.label for one in await cache.checkpoints("langgraph/t")] == ["one"]
        await cache.rollback("langgraph/t", "one", group=True)
    assert len(await ids(saver, THREAD)) == len(made)
    assert (await got(saver, config("t"))).checkpoint["channel_values"] == {"a": LARGE, "n": 1}


async def test_a_thread_with_named_points_is_listed_copied_and_thinned_out_like_any_other(
    saver: StateCacheSaver, cache: AsyncStateCache, worker: Worker
) -> None:
    made = await _played(saver)
    written = [("task", "a", LARGE)]
    async with flushing(worker):
        kept = await _named(cache)
    assert len(await ids(saver, THREAD)) == len(await ids(saver, None)) == len(made)
    assert len(await ids(saver, config("t"))) == 2
    assert (await got(saver, made[0])).pending_writes == written
    await saver.aput_writes(made[0], [("a", LARGE), ("b", LARGE)], "task")
    assert len((await got(saver, made[0])).pending_writes or ()) == 2
    await saver.acopy_thread("t", "copy")
    copied: RunnableConfig = {"configurable": {"thread_id": "copy"}}
    assert len(await ids(saver, copied)) == len(made)
    await saver.aprune(["t"])
    assert len(await ids(saver, THREAD)) == 2
    await put(saver, "t", {"a": LARGE}, parent=made[1], metadata={"run_id": "two"})
    await saver.adelete_for_runs(["two"])
    assert (await got(saver, config("t"))).pending_writes == written
    await saver.adelete_for_runs(["one"])
    assert {state.key async for state in cache.list("langgraph/t/", values=False)} == kept


@pytest.mark.parametrize("foreign", [{"other": 1}, {"thread_id": "t", "checkpoint_ns": 1}, ["t"], "text", None])
async def test_what_is_no_head_at_the_name_of_one_is_refused_with_its_key(
    saver: StateCacheSaver, cache: AsyncStateCache, foreign: Any
) -> None:
    await cache.set("langgraph/t/head/-", foreign)
    which, one = config("t"), checkpoint({"a": 1})
    for call in (
        lambda: saver.aget_tuple(which),
        lambda: put(saver, "t", {"a": 1}),
        lambda: saver.aput_writes(config("t", one["id"]), [("a", 1)], "task"),
        lambda: saver.aprune(["t"]),
    ):
        with pytest.raises(CodecError, match=r"langgraph/t/head/-.*no head or checkpoint of LangGraph's"):
            await call()
    theirs = InMemorySaver()
    for thread in ("t", "u"):
        await put(theirs, thread, {"a": 1})
    named = [found.config for found in theirs.list(None)]
    done = await asyncio.to_thread(import_checkpoints, named, theirs, saver, progress=lambda _: None)
    assert (done.written, done.kept, [*done.failed]) == (1, [], ["t"])
    assert "langgraph/t/head/-" in done.failed["t"]
    await saver.adelete_thread("t")
    await put(saver, "t", {"a": 1})
