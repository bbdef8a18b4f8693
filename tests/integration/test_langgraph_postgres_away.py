"""Threads that Redis holds go on while Postgres is away."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph

from statecache import AsyncStateCache, PostgresUnavailable, Settings
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.support.fault_proxy import FaultProxy
from tests.support.langgraph_stories import METADATA, checkpoint, config, put


def added(notes: list[str], more: list[list[str]]) -> list[str]:
    """Return the notes with more of them."""
    return notes + [one for some in more for one in some]


class Notes(TypedDict, total=False):
    notes: Annotated[list[str], DeltaChannel(added)]


def graph_of(saver: StateCacheSaver) -> Any:
    """Return a graph that keeps notes as deltas."""
    graph = StateGraph(Notes)
    graph.add_node("note", lambda _: {"notes": ["a note"]})
    graph.add_edge(START, "note")
    return graph.compile(checkpointer=saver)


def _behind(settings: Settings, proxy: FaultProxy) -> Settings:
    """Return settings of a client whose way to Postgres leads through a proxy, and whose calls do not wait for long."""
    return through(settings, postgres=proxy).model_copy(update={"timeout_s": 2.0, "hydrate_token_s": 2.0})


@pytest.mark.counts_seconds
@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
async def test_writes_that_arrive_before_their_checkpoint_wait_for_it(
    settings: Settings, postgres_proxy: FaultProxy, worker: Worker, hangs: bool
) -> None:
    """As LangGraph puts both at one moment, where it does not wait for either."""
    async with AsyncStateCache(settings=_behind(settings, postgres_proxy)) as cache:
        saver = StateCacheSaver(cache)
        await put(saver, "42", {"a": 1})
        await flush(worker)
        if hangs:
            postgres_proxy.freeze()
        else:
            await postgres_proxy.cut_off()
        for number in range(2):
            new = checkpoint({"a": number})
            await asyncio.gather(
                saver.aput_writes(config("42", new["id"]), [("a", number)], "task"),
                saver.aput(config("42"), new, METADATA, {"a": 1}),
            )
            found = await saver.aget_tuple(config("42"))
            assert found is not None
            assert (found.checkpoint["id"], found.pending_writes) == (new["id"], [("task", "a", number)])
        with pytest.raises(PostgresUnavailable):
            await saver.aput_writes(config("new", new["id"]), [("a", 1)], "task")


@pytest.mark.counts_seconds
async def test_a_graph_whose_channels_are_deltas_goes_on(
    settings: Settings, postgres_proxy: FaultProxy, worker: Worker
) -> None:
    async with AsyncStateCache(settings=_behind(settings, postgres_proxy)) as cache:
        graph = graph_of(StateCacheSaver(cache))
        for _ in range(2):
            await graph.ainvoke({"notes": []}, config("42"))
        await flush(worker)
        await postgres_proxy.cut_off()
        assert len((await graph.aget_state(config("42"))).values["notes"]) == 2
        assert len((await graph.ainvoke({"notes": []}, config("42"), durability="sync"))["notes"]) == 3
