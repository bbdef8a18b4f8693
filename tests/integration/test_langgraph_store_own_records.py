"""What the library keeps of its own beside the items of a store for LangGraph, and no listing takes for one."""

from __future__ import annotations

from typing import Any

import pytest

from statecache import AsyncStateCache
from statecache.adapters.langgraph import StateCacheStore
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.langgraph_items import Letters, keys
from tests.support.own_records import marked

ADA, BOB, LONG = ("users", "ada"), ("users", "bob"), ("users", "x" * 90, "y" * 90, "z" * 90)
LABELS = [one for known in (ADA, BOB, LONG) for one in (known, (*known, "more"))]
COUNT = 5


@pytest.fixture
async def store(cache: AsyncStateCache, worker: Worker) -> StateCacheStore:
    """A store with items in several namespaces, of all of which, and of each item, a point is named."""
    letters = Letters()
    store = StateCacheStore(cache, index={"dims": letters.dims, "embed": letters, "fields": ["text"]})
    for labels in LABELS:
        for number in range(COUNT):
            await store.aput(labels, f"k{number}", {"n": number, "text": "abc"[: number % 3]})
    async with flushing(worker):
        await marked(cache, *map(store.group_of, LABELS))
    return store


SEARCHES: list[dict[str, Any]] = [
    {}, {"limit": 2}, {"limit": 3, "offset": 4}, {"filter": {"n": 3}}, {"filter": {"n": {"$gt": 1}}},
    {"query": "ab"}, {"query": "ab", "limit": 2}, {"query": "ab", "limit": 3, "offset": 4},
]  # fmt: skip


@pytest.mark.parametrize("more", SEARCHES, ids=str)
async def test_a_search_finds_items_and_nothing_else(store: StateCacheStore, more: dict[str, Any]) -> None:
    for labels in ((), *LABELS, LONG[:3]):
        below = [one for one in LABELS if one[: len(labels)] == labels]
        number = len(below) * (1 if more.get("filter") == {"n": 3} else 3 if "filter" in more else COUNT)
        expected = max(min(number - more.get("offset", 0), more.get("limit", 10)), 0)
        found = await store.asearch(labels, **more)
        assert len({(*one.namespace, one.key) for one in found}) == len(found) == expected, labels


async def test_the_namespaces_are_those_that_hold_items(store: StateCacheStore) -> None:
    assert await store.alist_namespaces() == sorted(LABELS)
    assert await store.alist_namespaces(prefix=LONG) == [LONG, (*LONG, "more")]
    for gone in (ADA, LONG):
        for number in range(COUNT):
            await store.adelete(gone, f"k{number}")
        assert await keys(store, *gone, limit=20) == [f"k{number}" for number in reversed(range(COUNT))]
    assert await store.alist_namespaces() == sorted({*LABELS} - {ADA, LONG})


async def test_a_namespace_goes_back_to_its_named_point(store: StateCacheStore, cache: AsyncStateCache) -> None:
    for number in range(COUNT):
        await store.adelete(ADA, f"k{number}")
    await store.aput(ADA, "new", {"n": 9})
    await cache.rollback(store.group_of(ADA), "all-one", group=True, durability="memory")
    assert sorted([one.key for one in await store.asearch(ADA) if one.namespace == ADA]) == [
        f"k{number}" for number in range(COUNT)
    ]
