"""What live pages are given: of each key that changed its newest change, and never an older one after it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from statecache import AsyncStateCache, Change, Settings, StateCache
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing
from tests.support.local_reads import until


class Run(msgspec.Struct, frozen=True):
    """What an agent has come to."""

    step: int


def _shown(changes: list[Change[Any]]) -> dict[str, Any]:
    return {change.key: change.value for change in changes}


async def test_of_each_key_the_newest_change_is_given(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker
) -> None:
    await cache.set("runs/0", "before")
    await flush(worker)
    async with cache.watch("runs/") as page:
        with sync_cache.watch("runs/") as other:
            for number in range(10):
                for run in range(3):
                    await cache.set(f"runs/{run}", number)
            await cache.delete("runs/2")
            await cache.set("other/1", 1)
            await flush(worker)
            seen = [await anext(page) for _ in range(3)]
            assert _shown(seen) == {"runs/0": 9, "runs/1": 9, "runs/2": None}
            assert [change.deleted for change in sorted(seen, key=lambda one: one.key)] == [False, False, True]
            assert _shown([next(other) for _ in range(3)]) == _shown(seen)


@pytest.mark.parametrize("verb", ["watch", "changes"])
async def test_now_is_when_the_first_change_is_asked_for_or_the_block_begins_and_not_the_call(
    cache: AsyncStateCache, worker: Worker, verb: str
) -> None:
    def made() -> Any:
        return cache.watch("runs/") if verb == "watch" else cache.changes("runs/", since="now")

    asked, block = made(), made()
    async with flushing(worker):
        await cache.set("runs/1", "after the call", durability="postgres")
        async with block, asyncio.TaskGroup() as readers:
            first = readers.create_task(anext(asked))
            await until(lambda: asked._feed.begun)
            await cache.set("runs/2", "after the first asking", durability="postgres")
            assert (await first).key == (await anext(block)).key == "runs/2"


async def test_a_slow_page_is_given_what_is_newest_when_it_asks(cache: AsyncStateCache, worker: Worker) -> None:
    async with flushing(worker), cache.watch("runs/") as page:
        for run in range(5):
            await cache.set(f"runs/{run}", "old", durability="postgres")
        assert (await anext(page)).value == "old"
        for run in range(5):
            await cache.set(f"runs/{run}", "new", durability="postgres")
        async with asyncio.timeout(20):
            seen = [await anext(page) for _ in range(5)]
        assert {change.value for change in seen} == {"new"}


@pytest.mark.parametrize("page_size", [2, 100])
async def test_a_page_may_begin_with_all_that_is_there(
    cache: AsyncStateCache, settings: Settings, worker: Worker, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changes while it is listed is given again only where it is newer than what was listed."""
    monkeypatch.setattr("statecache.core.feed.feed.STATES", page_size)
    runs = cache.namespace("runs", type=Run)
    for run in range(6):
        await runs.set(str(run), Run(0))
    await runs.delete("5")
    async with flushing(worker):
        await runs.step("0", "done", lambda step: step.attempt)
    await flush(worker)
    async with runs.watch(initial=True) as page, AsyncStateCache(settings=settings) as other:
        listed = [await anext(page)]
        for step in (1, 2, 3):
            await other.set("runs/4", Run(step))
        await other.set("runs/0", Run(7))
        await flush(worker)
        listed += [await anext(page) for _ in range(4)]
        assert [change.key for change in listed] == [f"runs/{run}" for run in range(5)]
        assert [change.version for change in listed[:4]] == [1, 1, 1, 1]
        more = [await anext(page)] if page_size == 2 else [await anext(page) for _ in range(2)]
        steps = {change.key: change.value.step for change in (*listed, *more) if change.value is not None}
        assert steps == {"runs/0": 7, "runs/1": 0, "runs/2": 0, "runs/3": 0, "runs/4": 3}
        for key in steps:
            versions = [change.version for change in (*listed, *more) if change.key == key]
            assert versions == sorted(set(versions))
        page.stop()
        assert [change async for change in page] == []
