"""LangGraph's own suite for checkpointers, and graphs that must show the same as with its saver in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver

from statecache import AsyncStateCache, Settings, StateCache
from statecache.adapters.langgraph import StateCacheSaver
from statecache.testing import memory
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.langgraph_stories import atold, nested, told

Kind = Callable[[Settings], AbstractAsyncContextManager[StateCacheSaver]]
CAPABILITIES = {
    "put", "put_writes", "get_tuple", "list", "delete_thread", "delete_for_runs", "copy_thread", "prune",
}  # fmt: skip


@asynccontextmanager
async def on_settings(settings: Settings) -> AsyncIterator[StateCacheSaver]:
    """A saver with clients of its own."""
    async with StateCacheSaver(settings) as saver:
        yield saver


@asynccontextmanager
async def on_async_client(settings: Settings) -> AsyncIterator[StateCacheSaver]:
    """A saver on an asynchronous client."""
    async with AsyncStateCache(settings=settings) as cache:
        yield StateCacheSaver(cache)


@asynccontextmanager
async def on_sync_client(settings: Settings) -> AsyncIterator[StateCacheSaver]:
    """A saver on a synchronous client."""
    with StateCache(settings=settings) as cache:
        yield StateCacheSaver(cache)


@asynccontextmanager
async def in_memory(settings: Settings) -> AsyncIterator[StateCacheSaver]:
    """A saver on what stands for servers in unit tests."""
    async with memory() as cache:
        yield StateCacheSaver(cache)


KINDS = [on_settings, on_async_client, on_sync_client, in_memory]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Kind:
    """What the saver stands on."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=[False, True], ids=["unflushed", "flushing"])
async def settings_by_flushing(request: pytest.FixtureRequest, settings: Settings, worker: Worker) -> Any:
    """A deployment whose states stay where they are, and one whose states are in Postgres soon."""
    if not request.param:
        yield settings
        return
    async with flushing(worker):
        yield settings


async def test_it_passes_the_suite_for_checkpointers_with_all_that_there_is(
    kind: Kind, settings_by_flushing: Settings
) -> None:
    @checkpointer_test(name=kind.__name__)
    async def made() -> AsyncIterator[StateCacheSaver]:
        async with kind(settings_by_flushing) as saver:
            yield saver

    report = await validate(made)
    assert [failure for one in report.results.values() for failure in one.failures or ()] == []
    assert {name for name, one in report.results.items() if one.detected and one.passed} == CAPABILITIES
    assert report.conformance_level() == "FULL"


async def test_a_graph_shows_the_same_as_with_langgraphs_own_saver(kind: Kind, settings_by_flushing: Settings) -> None:
    async with kind(settings_by_flushing) as saver:
        assert await atold(saver, "a/b") == await atold(InMemorySaver(), "a/b")
        assert await asyncio.to_thread(told, saver, "c") == told(InMemorySaver(), "c")


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_graphs_within_graphs_show_the_same_whenever_they_are_kept(settings: Settings, durability: str) -> None:
    async with on_settings(settings) as saver:
        assert await nested(saver, "42", durability) == await nested(InMemorySaver(), "42", durability)
