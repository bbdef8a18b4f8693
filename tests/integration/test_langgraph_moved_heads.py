"""Heads that others move all the time, edit by hand or copy with their group: what they prove, and what is refused."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings, UsageError
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

    view: Any = Moving(cache.namespace("langgraph"), None, 0)
    loops = saver._clients._loops
    assert loops is not None
    assert loops._given is not None
    loops._given = loops._given._replace(view=view)
    found = await saver.aget_tuple(config("42"))
    assert found is not None
    assert len(known) > 1
    assert found.checkpoint["id"] in known[1:]


async def test_a_head_that_was_edited_by_hand_proves_nothing(
    cache: AsyncStateCache, world: World, psql: psycopg.Connection[Any]
) -> None:
    first, sixth, ninth = (checkpoint({"count": number}, version=number) for number in (1, 6, 9))
    saver = StateCacheSaver(cache)
    await put(saver, "42", first, None)
    await put(saver, "42", ninth, first["id"])
    head = await cache.get("langgraph/42/head/-")
    assert head is not None
    await cache.set("langgraph/42/head/-", head.value | {"checkpoint_id": first["id"], "newest": sixth["id"]})
    await flush(world.worker)
    await world.empty()
    await put(StateCacheSaver(cache), "42", ninth, first["id"])
    await flush(world.worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_a_thread_that_was_copied_with_its_group_is_refused_until_it_is_copied_by_the_saver(
    cache: AsyncStateCache, world: World
) -> None:
    first, second = (checkpoint({"text": "x" * 10_000, "count": number}, version=number) for number in (1, 2))
    saver = StateCacheSaver(cache)
    await put(saver, "42", first, None)
    async with flushing(world.worker):
        begun = await cache.get("langgraph/42/head/-")
        assert begun is not None
        await cache.wait_durable(begun)
        await cache.branch("langgraph/42", "langgraph/43", group=True)

    async def listed() -> None:
        [one async for one in saver.alist(config("43"))]

    for refused in (
        saver.aget_tuple(config("43")),
        saver.aget_tuple(config("43", first["id"])),
        put(saver, "43", second, first["id"]),
        saver.aput_writes(config("43", second["id"]), [("count", 2)], "a task"),
        saver.aprune(["43"]),
        saver.acopy_thread("43", "44"),
        listed(),
    ):
        with pytest.raises(UsageError, match="was copied from the thread '42'"):
            await refused
    assert [one.config["configurable"]["thread_id"] async for one in saver.alist(None)] == ["42"]
    await saver.adelete_thread("43")
    await saver.acopy_thread("42", "43")
    found = await saver.aget_tuple(config("43"))
    assert found is not None
    assert found.config["configurable"] == {"thread_id": "43", "checkpoint_ns": "", "checkpoint_id": first["id"]}
    assert found.checkpoint["channel_values"] == first["channel_values"]
