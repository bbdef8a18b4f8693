"""What a saver does in the settings that are hard on it is what it does in any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver

from statecache import Settings
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.fixtures.flusher import rows
from tests.support.langgraph_savers import KINDS, Kind
from tests.support.langgraph_stories import atold, nested, told
from tests.support.openai_sessions import World


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The setting."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def world(settings: Settings, worker: Worker, redis_raw: Any) -> World:
    """A deployment whose worker flushes when it is told to."""
    return World(settings, worker, redis_raw)


async def test_it_passes_the_suite_for_checkpointers(kind: Kind, world: World, psql: psycopg.Connection[Any]) -> None:
    @checkpointer_test(name=kind.__name__)
    async def made() -> AsyncIterator[StateCacheSaver]:
        async with kind(world) as saver:
            yield saver

    report = await validate(made)
    assert [failure for one in report.results.values() for failure in one.failures or ()] == []
    assert report.conformance_level() == "FULL"
    await world.empty()
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_graphs_show_the_same_as_with_langgraphs_own_saver(
    kind: Kind, world: World, psql: psycopg.Connection[Any]
) -> None:
    async with kind(world) as saver:
        assert await atold(saver, "a/b") == await atold(InMemorySaver(), "a/b")
        assert await asyncio.to_thread(told, saver, "c") == told(InMemorySaver(), "c")
        assert await nested(saver, "42", "async") == await nested(InMemorySaver(), "42", "async")
    await world.empty()
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
