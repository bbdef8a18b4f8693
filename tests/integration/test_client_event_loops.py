"""The event loop that a client is used in: one with eager tasks, none at all, and one that is not its own."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings, UsageError
from statecache.adapters.llama_index import StateCacheKVStore
from statecache.adapters.openai_agents import StateCacheSession
from statecache_workers.runner import Runner
from tests.support.eager_tasks import FACTORY
from tests.support.forking import in_a_child, status_of


@pytest.fixture
async def served(settings: Settings) -> AsyncIterator[Settings]:
    """Settings of a deployment with a worker at work."""
    runner = Runner(settings)
    working = asyncio.create_task(runner.run())
    yield settings
    runner.signalled()
    await working


async def _everything(cache: AsyncStateCache) -> None:
    await cache.set("runs/1", 0)
    await asyncio.gather(*(cache.increment("runs/1") for _ in range(8)))
    assert (await cache.update("runs/1", lambda value: -value)).value == -8
    found = await cache.get_many(["runs/1", "runs/2"], read="primary")
    assert [one and one.version for one in found.values()] == [10, None]
    assert await cache.get("runs/2") is None
    assert (await cache.create("runs/2", 1, durability="postgres")).version == 1
    assert [one.version async for one in cache.history("runs/1")] == [*range(1, 11)]
    assert await cache.step("runs/3", "a", lambda step: 7) == 7
    async with cache.lock("runs/4") as token, cache.transaction("runs/2") as transaction:
        assert token
        transaction.set("runs/2", 2)


async def test_a_loop_with_eager_tasks_is_like_any(served: Settings) -> None:
    asyncio.get_running_loop().set_task_factory(FACTORY)
    async with asyncio.timeout(30.0), AsyncStateCache(settings=served) as cache:
        await _everything(cache)


async def test_the_same_in_an_ordinary_loop(served: Settings) -> None:
    async with asyncio.timeout(30.0), AsyncStateCache(settings=served) as cache:
        await _everything(cache)


def _driven(work: Any) -> None:
    """Go on with a coroutine as a loop does that is not asyncio's."""
    try:
        work.send(None)
    finally:
        work.close()


@pytest.mark.parametrize("verb", ["get", "set", "set postgres", "step", "lock", "watch", "until_stopped"])
def test_without_a_loop_of_asyncio_it_says_so(settings: Settings, verb: str) -> None:
    cache = AsyncStateCache(settings=settings)

    async def work() -> None:
        if verb == "get":
            await cache.get("runs/1")
        elif verb == "step":
            await cache.step("runs/1", "a", lambda step: 7)
        elif verb == "lock":
            async with cache.lock("runs/1"):
                pass
        elif verb == "until_stopped":
            async with cache.until_stopped():
                pass
        elif verb == "watch":
            async for _ in cache.watch("runs/1"):
                pass
        else:
            await cache.set("runs/1", 1, durability="postgres" if "postgres" in verb else None)

    with pytest.raises(UsageError, match="event loop of asyncio"):
        _driven(work())


@pytest.mark.parametrize("of", ["client", "store"])
def test_a_loop_that_is_closed_with_tasks_pending_leaves_neither_errors_nor_connections(
    settings: Settings, of: str
) -> None:
    """As `loop.run_until_complete(…)` and `loop.close()` leave it: who waits is thrown away, and awaits nothing."""

    def closes_loops() -> None:  # in a child: what the last loop leaves goes with the process
        warnings.simplefilter("ignore", ResourceWarning)
        swallowed, descriptors = list[str](), list[int]()
        sys.unraisablehook = lambda told: swallowed.append(repr(told.exc_value))
        store = StateCacheKVStore(settings)

        async def reads_locally() -> None:
            cache = AsyncStateCache(settings=settings)
            await cache.set("runs/1", 1)
            while not cache.near.hits:
                await cache.get("runs/1", read="local")

        for _ in range(6):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(reads_locally() if of == "client" else store.aput("1", {"v": 1}))
            for task in asyncio.all_tasks(loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # that is asyncio's to say
            loop.close()
            del task
            gc.collect()
            descriptors.append(len(os.listdir("/proc/self/fd")))
        assert swallowed == []
        assert descriptors[-1] <= descriptors[1]

    assert status_of(in_a_child(closes_loops)) == 0


async def test_a_call_from_another_loop_harms_nothing_of_the_clients_own(served: Settings) -> None:
    async def wrong() -> None:
        with pytest.raises(UsageError, match="another event loop"):
            await cache.set("runs/1", 0, durability="postgres")
        with pytest.raises(UsageError, match="another event loop"):
            await cache.step("runs/9", "a", lambda step: 7)
        with pytest.raises(UsageError, match="another event loop"):
            async with cache.until_stopped():
                pass

    async with AsyncStateCache(settings=served) as cache:
        await cache.set("runs/1", 1)
        await asyncio.to_thread(lambda: asyncio.run(wrong()))
        for number in range(4):
            await cache.set("runs/1", number, durability="postgres")
        assert [one.version async for one in cache.history("runs/1")] == [*range(1, 6)]


@pytest.mark.parametrize("by", ["client", "session", "block"])
async def test_a_client_belongs_to_the_loop_that_opens_it_whoever_comes_first(settings: Settings, by: str) -> None:
    async def wrong() -> None:
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "client": lambda: cache.set("runs/1", 1),
            "session": lambda: StateCacheSession("1", cache).add_items([{"role": "user", "content": "a"}]),
            "block": cache.__aenter__,
        }
        with pytest.raises(UsageError, match="another event loop"):
            await calls[by]()

    async with AsyncStateCache(settings=settings) as cache:
        await asyncio.to_thread(lambda: asyncio.run(wrong()))
        session = StateCacheSession("1", cache)
        assert (await cache.set("runs/1", 2)).version == 1
        assert await session.get_items() == []
    async with cache:  # closed, it is nobody's
        with pytest.raises(UsageError, match="closed"):
            await cache.get("runs/1")


def test_a_client_that_a_loop_has_opened_belongs_to_a_forked_childs_own(settings: Settings) -> None:
    async def forked() -> int:
        async with AsyncStateCache(settings=settings) as cache:

            async def work() -> None:
                async with cache:
                    assert (await cache.set("runs/1", 1)).version == 1

            return await asyncio.to_thread(status_of, in_a_child(lambda: asyncio.run(work())))

    assert asyncio.run(forked()) == 0


async def test_who_writes_from_another_loop_takes_no_turn_from_the_clients_own(settings: Settings) -> None:
    """A lock of asyncio belongs to the loop that first had to wait for it."""

    async def wrong() -> None:
        await session.add_items([{"role": "user", "content": "b"}])

    async with AsyncStateCache(settings=settings) as cache:
        session = StateCacheSession("1", cache)
        async with session._clients.here().writing:
            with pytest.raises(UsageError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(asyncio.wait_for(wrong(), 5)))
            ours = asyncio.create_task(session.add_items([{"role": "user", "content": "a"}]))
            await asyncio.sleep(0)
        await ours
        assert len(await session.get_items()) == 1
