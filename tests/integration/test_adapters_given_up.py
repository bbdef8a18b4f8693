"""A write that is awaited on a StateCache and given up: once that is told, nothing of it is written any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import NamedTuple

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from llama_index.core.llms import ChatMessage

from statecache import Settings, StateCache
from statecache.adapters.langgraph import StateCacheSaver, StateCacheStore
from statecache.adapters.llama_index import StateCacheChatStore, StateCacheKVStore
from tests.fixtures.faults import through
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

THREAD: RunnableConfig = {"configurable": {"thread_id": "42", "checkpoint_ns": ""}}
TURNS = 20
"""How many looks a call has to get as far as its server, which is silent."""


class Given(NamedTuple):
    """What is there before, what is given up, and how what is there is read."""

    before: Callable[[], Awaitable[object]]
    given_up: Callable[[], Awaitable[object]]
    read: Callable[[], Awaitable[object]]


def put(cache: StateCache) -> Given:
    """Return the put of a value over another."""
    store = StateCacheKVStore(cache)
    return Given(lambda: store.aput("1", {"v": 0}), lambda: store.aput("1", {"v": 1}), lambda: store.aget("1"))


def delete(cache: StateCache) -> Given:
    """Return the deletion of a value."""
    store = StateCacheKVStore(cache)
    return Given(lambda: store.aput("1", {"v": 0}), lambda: store.adelete("1"), lambda: store.aget("1"))


def message(cache: StateCache) -> Given:
    """Return the addition of a message to a chat."""
    store = StateCacheChatStore(cache)

    async def add(content: str) -> None:
        await store.async_add_message("1", ChatMessage(content=content))

    async def read() -> list[str]:
        return [str(one.content) for one in await store.aget_messages("1")]

    return Given(lambda: add("0"), lambda: add("1"), read)


def thread(cache: StateCache) -> Given:
    """Return the deletion of a thread."""
    saver = StateCacheSaver(cache)

    async def begin() -> None:
        await saver.aput(THREAD, empty_checkpoint(), {}, {})

    async def read() -> bool:
        return await saver.aget_tuple(THREAD) is not None

    return Given(begin, lambda: saver.adelete_thread("42"), read)


def writes(cache: StateCache) -> Given:
    """Return what a task writes at a checkpoint."""
    saver, checkpoint = StateCacheSaver(cache), empty_checkpoint()
    at: RunnableConfig = {"configurable": {**THREAD["configurable"], "checkpoint_id": checkpoint["id"]}}

    async def begin() -> None:
        await saver.aput(THREAD, checkpoint, {}, {})

    async def read() -> object:
        found = await saver.aget_tuple(THREAD)
        return None if found is None else found.pending_writes

    return Given(begin, lambda: saver.aput_writes(at, [("answer", 1)], "task"), read)


def item(cache: StateCache) -> Given:
    """Return the put of an item over another."""
    store = StateCacheStore(cache)
    return Given(
        lambda: store.aput(("users",), "1", {"v": 0}), lambda: store.aput(("users",), "1", {"v": 1}),
        lambda: _value(store),
    )  # fmt: skip


def no_item(cache: StateCache) -> Given:
    """Return the deletion of an item."""
    store = StateCacheStore(cache)
    return Given(
        lambda: store.aput(("users",), "1", {"v": 0}), lambda: store.adelete(("users",), "1"), lambda: _value(store)
    )


def renewal(cache: StateCache) -> Given:
    """Return the reading of an item that lasts anew then."""
    store = StateCacheStore(cache)
    return Given(
        lambda: store.aput(("users",), "1", {"v": 0}, ttl=60.0), lambda: store.aget(("users",), "1"),
        lambda: _written(cache),
    )  # fmt: skip


def renewals(cache: StateCache) -> Given:
    """Return the search for items that last anew then."""
    return renewal(cache)._replace(given_up=lambda: StateCacheStore(cache).asearch(("users",)))


async def _written(cache: StateCache) -> int:
    """Return how often an item has been written."""
    state = await asyncio.to_thread(cache.get, "langgraph-store/users/1", read="primary")
    assert state is not None
    return state.version


async def _value(store: StateCacheStore) -> object:
    found = await store.aget(("users",), "1")
    return None if found is None else found.value


MADE = [put, delete, message, thread, writes, item, no_item, renewal, renewals]


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
async def test_nothing_is_written_once_it_is_told_that_it_was_given_up(
    made: Callable[[StateCache], Given], settings: Settings, proxy: FaultProxy
) -> None:
    loop = asyncio.get_running_loop()
    with StateCache(settings=settings) as near, StateCache(settings=through(settings, redis=proxy)) as far:
        near_one, far_one = made(near), made(far)
        await far_one.before()
        executor = ThreadPoolExecutor(4)
        loop.set_default_executor(executor)
        proxy.freeze()
        task = asyncio.ensure_future(far_one.given_up())
        for _ in range(TURNS):
            await pause()
        task.cancel()
        thaw = loop.call_later(0.3, proxy.thaw)
        with pytest.raises(asyncio.CancelledError):
            await task
        loop.set_default_executor(ThreadPoolExecutor(4))
        told = await near_one.read()
        proxy.thaw()
        thaw.cancel()
        await asyncio.to_thread(executor.shutdown)
        assert await near_one.read() == told


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
async def test_who_gives_up_what_no_thread_has_begun_waits_for_no_thread(
    made: Callable[[StateCache], Given], settings: Settings
) -> None:
    loop, free = asyncio.get_running_loop(), Event()
    with StateCache(settings=settings) as cache:
        one = made(cache)
        await one.before()
        before = await one.read()
        executor = ThreadPoolExecutor(1)
        loop.set_default_executor(executor)
        taken = loop.run_in_executor(None, free.wait)
        try:
            task = asyncio.ensure_future(one.given_up())
            for _ in range(TURNS):
                await pause()
            task.cancel()
            for _ in range(TURNS):
                await pause()
            assert task.cancelled()
        finally:
            free.set()
        await taken
        loop.set_default_executor(ThreadPoolExecutor(4))
        await asyncio.to_thread(executor.shutdown)
        assert await one.read() == before
