"""Heads that others move all the time, edit by hand or copy with their group: what they prove, and what is refused."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings, UsageError, VersionNotFound
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


async def _branched(cache: AsyncStateCache, world: World, thread: str) -> None:
    """Branch the group of the thread 42 once Postgres holds it."""
    async with flushing(world.worker):
        await cache.set("langgraph/42/end", 1, durability="postgres")
        await cache.delete("langgraph/42/end", durability="postgres")
        saver = StateCacheSaver(cache)
        await cache.branch("langgraph/42", saver.group_of(thread), group=True)


def _values(one: Any) -> Any:
    assert one is not None
    return one.config["configurable"], one.checkpoint["channel_values"], sorted(one.pending_writes or ())


async def _told(saver: StateCacheSaver, thread: str) -> list[Any]:
    return [_values(one) async for one in saver.alist(config(thread))]


@pytest.fixture
async def grown(cache: AsyncStateCache) -> list[Any]:
    """Checkpoints of the thread 42: a large text changes, another one stays, and a task has written to the last."""
    saver, put_so_far = StateCacheSaver(cache), list[Any]()
    for number in range(1, 4):
        one = checkpoint({"text": f"{number}" * 10_000, "same": "s" * 10_000, "count": number}, version=number)
        one["channel_versions"]["same"] = (
            f"{min(number, 2):08}"  # its state is at another version than a branch's first
        )
        new = {name: one["channel_versions"][name] for name in ("text", "count", *(["same"] if number < 3 else []))}
        parent = put_so_far[-1]["id"] if put_so_far else None
        await saver.aput(config("42", parent), one, METADATA, new)
        put_so_far.append(one)
    await saver.aput_writes(config("42", put_so_far[-1]["id"]), [("count", 9), ("text", "w" * 5000)], "a task")
    return put_so_far


@pytest.mark.parametrize("thread", ["43", "a/b c"])
async def test_a_thread_is_branched_with_its_group_and_each_goes_on_by_itself(
    cache: AsyncStateCache, world: World, grown: list[Any], settings: Settings, thread: str
) -> None:
    await _branched(cache, world, thread)
    saver = StateCacheSaver(cache)
    before = await _told(saver, "42")
    assert await _told(saver, thread) == [({**one, "thread_id": thread}, *rest) for one, *rest in before]
    assert len(before) == 3
    mine = checkpoint({"text": "m" * 10_000, "same": "s" * 10_000, "count": 4}, version=4)
    mine["channel_versions"]["same"] = "00000002"
    await saver.aput(config(thread, grown[-1]["id"]), mine, METADATA, {"text": "4", "count": "4"})
    await saver.aput_writes(config(thread, grown[-1]["id"]), [("count", 8)], "another task")
    async with AsyncStateCache(settings=settings) as other:
        elsewhere = StateCacheSaver(other)
        assert await _told(elsewhere, "42") == before
        found = await _told(elsewhere, thread)
        assert found == await _told(saver, thread)
        assert len(found) == 4
        assert found[0][1] == mine["channel_values"]
        assert [task for task, *_ in found[1][2]] == ["a task", "a task", "another task"]
        assert {one.config["configurable"]["thread_id"] async for one in elsewhere.alist(None)} == {"42", thread}
    await saver.acopy_thread(thread, "copied")
    assert [values for _, values, _ in await _told(saver, "copied")] == [values for _, values, _ in found]
    await saver.aprune([thread])
    assert [values for _, values, _ in await _told(saver, thread)] == [mine["channel_values"]]
    await saver.adelete_thread(thread)
    assert await _told(saver, "42") == before


async def test_a_branch_goes_on_when_the_thread_that_it_came_from_is_erased(
    cache: AsyncStateCache, world: World, grown: list[Any], settings: Settings
) -> None:
    await _branched(cache, world, "43")
    async with flushing(world.worker):
        await cache.erase("langgraph/42", group=True)
    async with AsyncStateCache(settings=settings) as other:
        found = await StateCacheSaver(other).aget_tuple(config("43"))
        assert found is not None
        assert found.checkpoint["channel_values"] == grown[-1]["channel_values"]
        with pytest.raises(VersionNotFound):
            await StateCacheSaver(other).aget_tuple(config("43", grown[0]["id"]))


async def test_a_branch_of_a_branch_names_the_first_thread(
    cache: AsyncStateCache, world: World, grown: list[Any]
) -> None:
    await _branched(cache, world, "43")
    async with flushing(world.worker):
        await cache.set("langgraph/43/end", 1, durability="postgres")
        await cache.branch("langgraph/43", "langgraph/44", group=True)
    saver = StateCacheSaver(cache)
    assert [values for _, values, _ in await _told(saver, "44")] == [one["channel_values"] for one in reversed(grown)]


async def test_a_branch_whose_thread_cannot_be_told_from_its_key_is_refused_until_the_saver_copies_it(
    cache: AsyncStateCache, world: World, grown: list[Any]
) -> None:
    thread, saver = "t" * 200, StateCacheSaver(cache)
    await _branched(cache, world, thread)

    async def listed() -> None:
        [one async for one in saver.alist(config(thread))]

    for refused in (
        saver.aget_tuple(config(thread)),
        saver.aget_tuple(config(thread, grown[0]["id"])),
        put(saver, thread, checkpoint({"count": 9}, version=9), grown[-1]["id"]),
        saver.aput_writes(config(thread, checkpoint({}, version=9)["id"]), [("count", 2)], "a task"),
        saver.aprune([thread]),
        saver.acopy_thread(thread, "44"),
        listed(),
    ):
        with pytest.raises(UsageError, match="came from the thread '42'"):
            await refused
    assert {one.config["configurable"]["thread_id"] async for one in saver.alist(None)} == {"42"}
    await saver.adelete_thread(thread)
    await saver.acopy_thread("42", thread)
    found = await saver.aget_tuple(config(thread))
    assert found is not None
    assert found.checkpoint["channel_values"] == grown[-1]["channel_values"]
