"""A head that others move all the time, or that was merged from another thread, proves no more than it can."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.langgraph_stories import METADATA, Interfering, checkpoint, config
from tests.support.openai_sessions import World


@pytest.fixture
def world(settings: Settings, worker: Worker, redis_raw: Any) -> World:
    """A deployment whose worker flushes when it is told to."""
    return World(settings, worker, redis_raw)


async def put(saver: StateCacheSaver, thread: str, one: Any, parent: str | None) -> None:
    """Put a checkpoint."""
    await saver.aput(config(thread, parent), one, METADATA, one["channel_versions"])


async def test_a_thread_that_moves_on_during_each_exchange_of_a_read_is_never_said_to_be_empty(
    cache: AsyncStateCache,
) -> None:
    other, saver = StateCacheSaver(cache), StateCacheSaver(cache)
    checkpoints = [checkpoint({"count": number}, version=number) for number in range(1, 20)]
    known: list[str] = [checkpoints[0]["id"]]
    await put(other, "42", checkpoints[0], None)

    class Moving(Interfering):
        def __getattr__(self, verb: str) -> Any:
            if verb != "get_many":
                return getattr(self.view, verb)

            async def get_many(names: Any, **more: Any) -> Any:
                await put(other, "42", checkpoints[len(known)], known[-1])
                known.append(checkpoints[len(known)]["id"])
                return await self.view.get_many(names, **more)

            return get_many

    saver._clients._views[id(cache)] = Moving(cache.namespace("langgraph"), None, 0)
    found = await saver.aget_tuple(config("42"))
    assert found is not None
    assert len(known) > 1
    assert found.checkpoint["id"] in known[1:]


async def test_a_head_that_was_merged_from_another_thread_proves_nothing_of_this_one(
    cache: AsyncStateCache, world: World, psql: psycopg.Connection[Any]
) -> None:
    first, fifth, sixth, ninth = (checkpoint({"count": number}, version=number) for number in (1, 5, 6, 9))
    ours, theirs = StateCacheSaver(cache), StateCacheSaver(cache)
    await put(ours, "42", first, None)
    async with flushing(world.worker):
        begun = await cache.get("langgraph/42/head/-")
        assert begun is not None
        await cache.wait_durable(begun)
        await cache.branch("langgraph/42", "langgraph/43", group=True)
        await put(theirs, "43", fifth, first["id"])
        await put(theirs, "43", sixth, fifth["id"])
        await put(ours, "42", ninth, first["id"])
        await cache.merge("langgraph/43/head/-", "langgraph/42/head/-", function=lambda _base, _ours, other: other)
    await flush(world.worker)
    head = await cache.get("langgraph/42/head/-")
    assert head is not None
    assert head.value["newest"] == sixth["id"]
    await world.empty()
    await put(ours, "42", ninth, sixth["id"])
    await flush(world.worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
